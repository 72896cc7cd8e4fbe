"""The GPUs of this machine, as ``nvidia-smi`` sees them: enough of them, alike, idle, healthy."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import DoesNotApply, Finding, error, warning
from megatron_agent.doctor.registry import check

FIELDS = (
    "index",
    "name",
    "memory.total",
    "memory.used",
    "temperature.gpu",
    "ecc.errors.uncorrected.volatile.total",
    "mig.mode.current",
)
TIMEOUT_S = 30
MAX_USED_MIB = 1024
"""A driver and an idle display server take less."""
MAX_CELSIUS = 85


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One line of ``nvidia-smi``; None where a GPU does not report a number."""

    gpu_id: str
    name: str
    total_mib: int | None
    used_mib: int | None
    celsius: int | None
    num_ecc_errors: int | None
    is_mig: bool


@check("gpus", "the GPUs are there, alike, idle and healthy")
def check_gpus(case: RunCase) -> Iterator[Finding]:
    """Of this machine only; on a cluster, run it on each node (``srun``)."""
    if case.device != "cuda":
        raise DoesNotApply("the run is for a CPU")
    try:
        gpus = installed_gpus()
    except OSError as fault:
        remedy = "Run it on a GPU node, or use cluster=cpu."
        yield error("nvidia-smi", f"must work for trainer.device=cuda ({fault})", remedy)
        return
    wanted = case.values.integer("trainer.n_gpus_per_node") or 1
    if len(gpus) < wanted:
        problem = f"must be at most the {len(gpus)} GPUs of this machine, got {wanted}"
        yield error("trainer.n_gpus_per_node", problem, "Use a smaller layout, or another node.")
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        remedy = "Choose alike ones with CUDA_VISIBLE_DEVICES: the slowest sets the pace."
        yield warning("GPUs", f"should be alike, got {', '.join(names)}", remedy)
    for gpu in gpus:
        yield from _health(gpu)


def _health(gpu: Gpu) -> Iterator[Finding]:
    subject = f"GPU {gpu.gpu_id}"
    if gpu.num_ecc_errors:
        problem = f"must have no uncorrected memory errors, got {gpu.num_ecc_errors}"
        yield error(subject, problem, "Drain the node and have the GPU reset or replaced.")
    if gpu.is_mig:
        problem = "must not be cut into instances (MIG): NCCL needs whole devices"
        yield error(subject, problem, "Ask for nodes without MIG.")
    if gpu.used_mib is not None and gpu.used_mib > MAX_USED_MIB:
        problem = f"should be idle, but {gpu.used_mib} of {gpu.total_mib} MiB are in use"
        yield warning(subject, problem, "'nvidia-smi' names the processes; end what is left over.")
    if gpu.celsius is not None and gpu.celsius > MAX_CELSIUS:
        problem = f"should be below {MAX_CELSIUS} degrees when idle, got {gpu.celsius}"
        yield warning(subject, problem, "Have its cooling looked at: it will run slowly.")


def installed_gpus() -> list[Gpu]:
    """Ask ``nvidia-smi``.

    Raises:
        OSError: it is not there, fails, or does not answer in time.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise OSError("not found")
    command = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired as fault:
        raise OSError(f"no answer in {TIMEOUT_S} s") from fault
    except subprocess.CalledProcessError as fault:
        lines = (fault.stdout + fault.stderr).strip().splitlines()
        raise OSError(lines[0] if lines else f"exit code {fault.returncode}") from fault
    return [_gpu(row) for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True)]


def _gpu(row: list[str]) -> Gpu:
    gpu_id, name, total, used, celsius, ecc_errors, mig = row
    return Gpu(
        gpu_id=gpu_id,
        name=name,
        total_mib=_number(total),
        used_mib=_number(used),
        celsius=_number(celsius),
        num_ecc_errors=_number(ecc_errors),
        is_mig=mig == "Enabled",
    )


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None  # "[N/A]", "[Not Supported]"
