"""Writing weights in either format, a batch of files at a time.

A batch is what an interrupted conversion does not repeat: one safetensors file, or one file of each
rank of a pipeline stage. In a batch every parameter is read once and written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from megatron_agent.checkpoint.output_file import FileRecord, output_file
from megatron_agent.checkpoint.read_ahead import read_ahead
from megatron_agent.checkpoint.rules import ModelRules, ParamRule, Piece, RankContents
from megatron_agent.checkpoint.safetensors_file import SafetensorsWriter, write_index
from megatron_agent.checkpoint.safetensors_folder import SINGLE
from megatron_agent.checkpoint.tensors import TensorSpec, check_finite
from megatron_agent.checkpoint.torch_dist_file import TorchDistWriter
from megatron_agent.checkpoint.torch_dist_metadata import WrittenItem, write_metadata
from megatron_agent.checkpoint.weights import Weights
from megatron_agent.errors import CheckpointError

ITERATION = "iter_0000000"
COMMON_STATE = "common_state/shard_0_1"

OnBytes = Callable[[int], Any]


@dataclass(frozen=True)
class Batch:
    """Files that are written together.

    Attributes:
        name: unique in a conversion.
        params: what they hold, in the order of writing.
        num_bytes: of tensors in them.
        stage: pipeline stage of the ranks; 0 in a Hugging Face folder.
    """

    name: str
    params: tuple[ParamRule, ...]
    num_bytes: int
    stage: int = 0


@dataclass(frozen=True)
class BatchResult:
    """What writing a batch left: files relative to the target, and chunks in them."""

    files: Mapping[str, FileRecord]
    items: tuple[WrittenItem, ...] = ()


class Target(Protocol):
    """A format to write."""

    batches: tuple[Batch, ...]

    def write(self, batch: Batch, root: Path, weights: Weights, on_bytes: OnBytes) -> BatchResult:
        """Write the files of a batch.

        Raises:
            CheckpointError: a number that is not finite.
        """

    def finish(self, root: Path, results: Iterable[BatchResult]) -> None:
        """Write what says that all files are there."""


class HFTarget:
    """A Hugging Face folder.

    Args:
        rules: the model.
        dtypes: type of each parameter by name.
        shard_bytes: largest file; a larger parameter gets a file of its own.
    """

    def __init__(
        self, rules: ModelRules, dtypes: Mapping[str, torch.dtype], shard_bytes: int
    ) -> None:
        self._dtypes = dtypes
        self._largest = max(map(self._num_bytes, rules.params))
        sized = [(rule, self._num_bytes(rule)) for rule in rules.params]
        parts = list(_split(sized, shard_bytes))
        self.batches = tuple(
            Batch(_shard_name(number, len(parts)), *part) for number, part in enumerate(parts, 1)
        )

    def write(self, batch: Batch, root: Path, weights: Weights, on_bytes: OnBytes) -> BatchResult:
        # Wide types first: then every tensor begins at a multiple of its own width.
        params = sorted(batch.params, key=lambda rule: -self._dtypes[rule.name].itemsize)
        specs = {name: spec for rule in params for name, spec in self._specs(rule).items()}
        with output_file(root / batch.name) as file:
            writer = SafetensorsWriter(file, specs)
            for _, tensors in read_ahead(
                params, lambda rule: _finite_hf(weights, rule), self._num_bytes, self._largest
            ):
                for name, tensor in tensors.items():
                    writer.append(name, tensor)
                    on_bytes(tensor.nbytes)
            writer.close()
        return BatchResult({batch.name: file.record()})

    def finish(self, root: Path, results: Iterable[BatchResult]) -> None:
        if len(self.batches) > 1:
            files = {
                batch.name: {n: s for rule in batch.params for n, s in self._specs(rule).items()}
                for batch in self.batches
            }
            write_index(root, files)

    def _num_bytes(self, rule: ParamRule) -> int:
        return sum(spec.num_bytes for spec in self._specs(rule).values())

    def _specs(self, rule: ParamRule) -> dict[str, TensorSpec]:
        dtype = self._dtypes[rule.name]
        return {name: TensorSpec(dtype, shape) for name, shape in rule.hf_shapes.items()}


class MegatronTarget:
    """A torch_dist checkpoint whose files are those of the ranks of a layout.

    Args:
        rules: the model.
        ranks: what each rank holds.
        dtypes: type of each parameter by name.
        shard_bytes: largest file, roughly.
        common_state: what Megatron stores beside the tensors.

    Raises:
        CheckpointError: layers of different types.
    """

    def __init__(
        self,
        rules: ModelRules,
        ranks: Sequence[RankContents],
        dtypes: Mapping[str, torch.dtype],
        shard_bytes: int,
        common_state: Mapping[str, Any],
    ) -> None:
        self._ranks, self._common_state, self._dtypes = ranks, dict(common_state), dtypes
        self._largest = max(map(self._num_bytes, rules.params))
        places = rules.by_place()
        self._pieces: list[dict[str, list[Piece]]] = [{} for _ in ranks]
        self.specs: dict[str, TensorSpec] = {}
        for rank, contents in enumerate(ranks):
            for piece in contents.pieces:
                rule = places[piece.key, piece.lead]
                self._pieces[rank].setdefault(rule.name, []).append(piece)
                dtype = dtypes[rule.name]
                spec = self.specs.setdefault(piece.key, TensorSpec(dtype, piece.global_shape))
                if spec.dtype != dtype:
                    raise CheckpointError(
                        piece.key,
                        "must be of one type in all layers, which are one tensor for Megatron",
                        f"{spec.dtype} and {dtype}",
                        "Choose the type of the result with --dtype.",
                    )
        self.batches = tuple(self._batches(rules, shard_bytes))

    def _num_bytes(self, rule: ParamRule) -> int:
        return TensorSpec(self._dtypes[rule.name], rule.shape).num_bytes

    def _batches(self, rules: ModelRules, shard_bytes: int) -> Iterator[Batch]:
        for stage in sorted({contents.stage for contents in self._ranks}):
            held = {name for rank in self._of_stage(stage) for name in self._pieces[rank]}
            sized = [(rule, self._num_bytes(rule)) for rule in rules.params if rule.name in held]
            limit = shard_bytes * len(self._of_stage(stage))
            for part, (params, num_bytes) in enumerate(_split(sized, limit)):
                yield Batch(f"stage{stage}-part{part}", params, num_bytes, stage)

    def _of_stage(self, stage: int) -> list[int]:
        return [rank for rank, contents in enumerate(self._ranks) if contents.stage == stage]

    def write(self, batch: Batch, root: Path, weights: Weights, on_bytes: OnBytes) -> BatchResult:
        folder = root / ITERATION
        folder.mkdir(exist_ok=True)
        part = batch.name.rpartition("part")[2]
        with ExitStack() as stack:
            names = {rank: f"__{rank}_{part}.distcp" for rank in self._of_stage(batch.stage)}
            files = {
                rank: stack.enter_context(output_file(folder / name))
                for rank, name in names.items()
            }
            writers = {rank: TorchDistWriter(files[rank], name) for rank, name in names.items()}
            if part == "0":
                self._write_objects(writers)
            for rule, tensor in read_ahead(
                batch.params,
                lambda rule: _finite_megatron(weights, rule),
                self._num_bytes,
                self._largest,
            ):
                for rank, writer in writers.items():
                    for piece in self._pieces[rank].get(rule.name, ()):
                        ones = (1,) * len(piece.lead)
                        chunk = cut(tensor, piece).reshape(ones + piece.sizes)
                        writer.append(piece.key, piece.lead + piece.offset, chunk)
                on_bytes(tensor.nbytes)
        records = {f"{ITERATION}/{name}": files[rank].record() for rank, name in names.items()}
        items = tuple(item for writer in writers.values() for item in writer.items)
        return BatchResult(records, items)

    def _write_objects(self, writers: Mapping[int, TorchDistWriter]) -> None:
        for rank, writer in writers.items():
            if rank == 0:
                writer.append_object(COMMON_STATE, self._common_state)
            for key in self._ranks[rank].object_keys:
                writer.append_object(key, None)

    def finish(self, root: Path, results: Iterable[BatchResult]) -> None:
        items = [item for result in results for item in result.items]
        write_metadata(root / ITERATION, self.specs, items)


def cut(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    """Return a rank's piece of a parameter; rows beyond the vocabulary are zero.

    Example:
        >>> cut(torch.ones(3, 1), Piece("key", (4, 1), (), (2, 0), (2, 1))).tolist()
        [[1.0], [0.0]]
    """
    part = tensor[
        tuple(
            slice(start, start + size)
            for start, size in zip(piece.offset, piece.sizes, strict=True)
        )
    ]
    missing = piece.sizes[0] - part.shape[0]
    if not missing:
        return part
    return torch.cat([part, part.new_zeros(missing, *part.shape[1:])])


def _finite_hf(weights: Weights, rule: ParamRule) -> dict[str, torch.Tensor]:
    tensors = {name: tensor.contiguous() for name, tensor in weights.hf(rule).items()}
    for name, tensor in tensors.items():
        check_finite(name, tensor)
    return tensors


def _finite_megatron(weights: Weights, rule: ParamRule) -> torch.Tensor:
    tensor = weights.megatron(rule)
    check_finite(rule.name, tensor)
    return tensor


def _split(
    sized: Iterable[tuple[ParamRule, int]], limit: int
) -> Iterator[tuple[tuple[ParamRule, ...], int]]:
    """Yield consecutive parameters that fit below ``limit`` together, and their bytes."""
    part: list[ParamRule] = []
    num_bytes = 0
    for rule, size in sized:
        if part and num_bytes + size > limit:
            yield tuple(part), num_bytes
            part, num_bytes = [], 0
        part.append(rule)
        num_bytes += size
    if part:
        yield tuple(part), num_bytes


def _shard_name(number: int, total: int) -> str:
    return SINGLE if total == 1 else f"model-{number:05d}-of-{total:05d}.safetensors"
