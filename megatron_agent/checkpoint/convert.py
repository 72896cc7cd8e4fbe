"""A conversion from beginning to end: plan, write, check, publish."""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from megatron_agent.checkpoint import megatron_model, megatron_rules
from megatron_agent.checkpoint.locate import HF_FILES, TRACKER, Located, locate
from megatron_agent.checkpoint.lora import LoraAdapter, MergedWeights
from megatron_agent.checkpoint.manifest import write_manifest
from megatron_agent.checkpoint.partial import PartialFolder, no_space
from megatron_agent.checkpoint.request import Request
from megatron_agent.checkpoint.rules import ModelRules
from megatron_agent.checkpoint.side_files import copy_side_files, describe, found
from megatron_agent.checkpoint.targets import ITERATION, HFTarget, MegatronTarget, Target
from megatron_agent.checkpoint.tensors import TensorSpec
from megatron_agent.checkpoint.verdict import tied_findings
from megatron_agent.checkpoint.weights import (
    CastWeights,
    HFWeights,
    MegatronWeights,
    Weights,
    open_weights,
)
from megatron_agent.errors import CheckpointError

logger = logging.getLogger(__name__)

COPIES_IN_MEMORY = 4
"""Of the largest parameter: as read, translated ahead, being written, and cut for a rank."""

OnBytes = Callable[[int], Any]


@dataclass(frozen=True)
class Job:
    """A conversion whose source was opened and found in order.

    Attributes:
        request: what was asked for.
        located: the source.
        hf_files: folder with config.json and tokenizer.
        config: the model's configuration.
        rules: how its parameters map.
        stored: the source as it is stored.
        weights: what the target should hold.
        target: how it is written.
    """

    request: Request
    located: Located
    hf_files: Path
    config: Any
    rules: ModelRules
    stored: HFWeights | MegatronWeights
    weights: Weights
    target: Target

    @property
    def num_bytes(self) -> int:
        return sum(batch.num_bytes for batch in self.target.batches)

    def describe(self, *, writes: bool = True) -> str:
        """The plan, for people; of a conversion, or of the check of an existing target."""
        largest = max(self.rules.params, key=lambda rule: torch.Size(rule.shape).numel())
        result_bytes = TensorSpec(self.weights.dtype(largest), largest.shape).num_bytes
        tensor_bytes = COPIES_IN_MEMORY * max(result_bytes, self.stored.num_bytes(largest))
        program_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        request = self.request
        layout = f", cut for {request.layout}" if writes and request.to == "megatron" else ""
        batches = f" in {len(self.target.batches)} batches of files" if writes else ""
        lines = [
            f"source   {self.located.weights} ({self.located.kind})",
            f"target   {request.target} ({request.to}{layout}, {_name(self._dtype())})",
            f"model    {self.config.architectures[0]}, {self.rules.num_layers} layers, "
            f"{len(self.rules.params)} parameters",
            f"files    {describe(found(self.hf_files))}",
            f"{'writes' if writes else 'checks'}   {_gb(self.num_bytes)}{batches}",
            f"memory   {_gb(program_bytes + tensor_bytes)}: {_gb(program_bytes)} for the program, "
            f"and {COPIES_IN_MEMORY} times the largest parameter, {largest.name}",
        ]
        return "\n".join(lines)

    def _dtype(self) -> torch.dtype:
        return self.weights.dtype(self.rules.params[0])

    def identity(self) -> dict[str, Any]:
        """What must be the same for an interrupted conversion to go on."""
        files = [*self.stored.folder.files(), *self._lora_files()]
        stats = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}
        request = self.request
        return {
            "files": stats,
            "to": request.to,
            "layout": str(request.layout),
            "dtype": _name(request.dtype),
            "lora": str(request.lora),
            "shard_bytes": request.shard_bytes,
        }

    def _lora_files(self) -> list[Path]:
        return [] if self.request.lora is None else sorted(self.request.lora.glob("adapter_*"))


@contextlib.contextmanager
def open_job(request: Request) -> Iterator[Job]:
    """Open the source, look at all of it that can be looked at without reading weights, and plan.

    Raises:
        CheckpointError: whatever is wrong with source or options.
    """
    megatron_model.prepare()
    located = locate(request.source)
    hf_files = request.hf_files or located.hf_files
    if hf_files is None:
        raise CheckpointError(
            str(request.source),
            "must have a config.json with it",
            "none",
            "Name the folder of the model that it was trained from with --hf.",
        )
    with contextlib.ExitStack() as stack:
        stored = stack.enter_context(open_weights(located))
        config = megatron_model.read_config(hf_files)
        ranks = None
        if request.to == "megatron":  # before the rules: they keep a process group open
            ranks = megatron_rules.rank_contents(config, request.layout)
        rules = stack.enter_context(megatron_rules.model_rules(config))
        _check_accounts(request, hf_files, stored, rules)
        weights: Weights = stored
        if request.lora is not None:
            adapter = LoraAdapter(request.lora)
            stack.callback(adapter.close)
            adapter.check_fits(rules)
            weights = MergedWeights(stored, adapter, request.dtype)
        elif request.dtype is not None:
            weights = CastWeights(stored, request.dtype)
        dtypes = {rule.name: weights.dtype(rule) for rule in rules.params}
        target: Target
        if ranks is None:
            target = HFTarget(rules, dtypes, request.shard_bytes)
        else:
            common = {"iteration": 0, "content_metadata": dict(megatron_model.SHARDING)}
            target = MegatronTarget(rules, ranks, dtypes, request.shard_bytes, common)
        yield Job(request, located, hf_files, config, rules, stored, weights, target)


def check_target(job: Job) -> PartialFolder:
    """Refuse a target that cannot be written, before anything is.

    Raises:
        CheckpointError: see :meth:`PartialFolder.check`.
    """
    partial = PartialFolder(job.request.target, job.identity())
    num_bytes = {batch.name: batch.num_bytes for batch in job.target.batches}
    partial.check(job.request.source, num_bytes)
    return partial


def write(job: Job, about: dict[str, Any], on_bytes: OnBytes = lambda _: None) -> PartialFolder:
    """Write the target into its ``.partial`` folder; what an earlier try wrote is kept.

    Args:
        job: see :func:`open_job`.
        about: for the manifest.
        on_bytes: is told how many bytes of tensors were written.

    Raises:
        CheckpointError: as :func:`check_target`; or numbers are not finite.
    """
    partial = check_target(job)
    results = {batch.name: partial.result(batch.name) for batch in job.target.batches}
    waiting = [batch for batch in job.target.batches if results[batch.name] is None]
    partial.open()
    on_bytes(job.num_bytes - sum(batch.num_bytes for batch in waiting))
    try:
        # A batch is synced to disk while the next one is written.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="sync") as background:
            kept: Future[None] | None = None
            for batch in waiting:
                result = job.target.write(batch, partial.root, job.weights, on_bytes)
                results[batch.name] = result
                if kept is not None:
                    kept.result()
                kept = background.submit(partial.add, batch.name, result)
            if kept is not None:
                kept.result()
        done = [result for result in results.values() if result is not None]
        job.target.finish(partial.root, done)
        _write_side_files(job, partial.root)
        write_manifest(partial.root, about, done)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise no_space(partial.root, "a full disk") from None
    return partial


def about(job: Job) -> dict[str, Any]:
    """What the manifest says of a conversion."""
    request = job.request
    return {
        "source": str(job.located.weights.absolute()),
        "source_format": job.located.kind,
        "format_of_weights": request.to,
        "layout": str(request.layout) if request.to == "megatron" else None,
        "dtype": _name(job.weights.dtype(job.rules.params[0])),
        "lora": None if request.lora is None else str(request.lora.absolute()),
        "num_parameters": len(job.rules.params),
        "versions": {name: version(name) for name in ("torch", "megatron-core", "megatron-bridge")},
    }


def target_weights(root: Path, job: Job) -> Located:
    """Where the weights of a target are, also before it has its name."""
    if job.request.to == "hf":
        return Located("hf", root, root)
    return Located("megatron", root / ITERATION, root / HF_FILES)


def _check_accounts(
    request: Request, hf_files: Path, stored: HFWeights | MegatronWeights, rules: ModelRules
) -> None:
    findings = stored.account(rules) or tied_findings(rules, stored)
    if findings:
        shown = "; ".join(findings[:5])
        more = f"; and {len(findings) - 5} more" if len(findings) > 5 else ""
        raise CheckpointError(
            str(request.source),
            f"must hold exactly the tensors of the model in {hf_files / 'config.json'}",
            shown + more,
            "The configuration is of another architecture or size, or the checkpoint is not whole "
            "or quantized.",
        )


def _write_side_files(job: Job, root: Path) -> None:
    dtype = job.weights.dtype(job.rules.params[0])
    if job.request.to == "hf":
        copy_side_files(job.hf_files, root, dtype)
    else:
        copy_side_files(job.hf_files, root / HF_FILES, dtype)
        (root / TRACKER).write_text("0\n", encoding="utf-8")


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
