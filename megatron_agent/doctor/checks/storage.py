"""The disk holds the checkpoints that the run keeps, and shared memory what Ray puts there."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.checks.weights import read_header
from megatron_agent.doctor.findings import Finding, error, note, warning
from megatron_agent.doctor.registry import check
from megatron_agent.writable import nearest_existing, write_fault

GIB = 1 << 30
OPTIMIZER_BYTES = 12
"""A parameter's master copy and Adam's two moments, each in float32."""
SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_BYTES = 2 * GIB
TIGHT = 0.8
"""Share of the free space above which the run is told that it is tight."""


@check("storage", "the disk has room for the checkpoints, and the run may write there")
def check_storage(case: RunCase) -> Iterator[Finding]:
    """Checkpoints kept, and one more, since a new one is complete before an old one goes."""
    folder = case.run_dir
    if folder is None:
        return
    existing = nearest_existing(folder)
    fault = write_fault(existing)
    if fault:
        yield error(
            "run.dir", f"must be writable ({existing}: {fault}), got {folder}", "Choose another."
        )
        return
    num_parameters = count_parameters(case)
    if not num_parameters:
        return
    each_bytes = num_parameters * _bytes_per_parameter(case)
    num_kept, is_bounded = _num_checkpoints(case)
    if not is_bounded:
        problem = f"keeps every checkpoint, about {each_bytes / GIB:.1f} GiB each"
        yield note("trainer.max_ckpt_to_keep", problem, "Set a number to keep the last ones only.")
    needed_bytes = each_bytes * (num_kept + 1)
    free_bytes = shutil.disk_usage(existing).free
    sizes = (
        f"{num_kept} checkpoints and one being written, {each_bytes / GIB:.1f} GiB each: "
        f"{needed_bytes / GIB:.1f} GiB, free are {free_bytes / GIB:.1f} GiB in {existing}"
    )
    remedy = "Keep fewer (trainer.max_ckpt_to_keep), or write to another disk (run.dir)."
    if num_kept and needed_bytes > free_bytes:
        yield error("run.dir", f"must have room for {sizes}", remedy)
    elif num_kept and needed_bytes > TIGHT * free_bytes:
        yield warning("run.dir", f"has little room for {sizes}", remedy)


@check("shared_memory", "Ray and PyTorch find shared memory")
def check_shared_memory(_case: RunCase) -> Iterator[Finding]:
    """Ray keeps its objects there, weights on their way to servers pass through it."""
    if not SHARED_MEMORY.is_dir():
        yield error(str(SHARED_MEMORY), "must be there", "Mount a tmpfs, or run outside a jail.")
        return
    free_bytes = shutil.disk_usage(SHARED_MEMORY).free
    if free_bytes < MIN_SHARED_BYTES:
        problem = f"should have {MIN_SHARED_BYTES / GIB:.0f} GiB free, got {free_bytes / GIB:.2f}"
        remedy = "Start the container with --shm-size=16g, or remove old files from it."
        yield warning(str(SHARED_MEMORY), problem, remedy)


def count_parameters(case: RunCase) -> int:
    """Parameters in the model's files; 0 when they cannot be read."""
    if case.model_folder is None:
        return 0
    try:
        return sum(
            math.prod(shape)
            for path in case.model_folder.glob("*.safetensors")
            for shape in read_header(path)[0].values()
        )
    except ValueError:
        return 0  # a finding of the weights


def _bytes_per_parameter(case: RunCase) -> int:
    """Weights and optimizer of a checkpoint as the actor saves it; LoRA saves less."""
    contents = case.values.get("actor_rollout_ref.actor.checkpoint.save_contents") or ()
    weight_bytes = 4 if case.device == "cpu" else 2
    return weight_bytes * sum(
        name in contents for name in ("model", "hf_model")
    ) + OPTIMIZER_BYTES * ("optimizer" in contents)


def _num_checkpoints(case: RunCase) -> tuple[int, bool]:
    """How many there are at the end, and whether their number is bounded."""
    every = case.values.integer("trainer.save_freq")
    if every is None or every < 1:
        return 0, True
    num_steps = case.values.integer("trainer.total_training_steps") or 0
    num_written = max(1, num_steps // every)
    num_kept = case.values.integer("trainer.max_ckpt_to_keep")
    return (num_written, False) if num_kept is None else (min(num_kept, num_written), True)
