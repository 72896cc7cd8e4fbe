"""The table of contents of a torch_dist checkpoint, as verl's and Megatron's savers write it.

A global tensor is stored as rectangular chunks; ``.metadata`` says which and where. It is a pickle,
and is read without running it.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatron_agent.atomic_file import atomic_file
from megatron_agent.checkpoint.inert_pickle import Names, Record, read_inert
from megatron_agent.checkpoint.tensors import TensorSpec
from megatron_agent.errors import CheckpointError

METADATA = ".metadata"
CONFIG = "metadata.json"

_RECORD_MODULES = ("metadata", "filesystem", "planner")


def _record(name: str) -> type[Record]:
    return type(name, (Record,), {})


def _torch_name(name: str) -> Any:
    value = getattr(torch, name, None)
    return tuple if name == "Size" else value if isinstance(value, torch.dtype) else None


_NAMES: Names = {
    **{f"torch.distributed.checkpoint.{module}": _record for module in _RECORD_MODULES},
    "megatron.core.dist_checkpointing.strategies.torch": {"MCoreMetadata": Record},
    "torch": _torch_name,
    "torch.serialization": {"_get_layout": Record},
    "pathlib": {"PosixPath": Record},
}


@dataclass(frozen=True)
class Chunk:
    """A rectangle of a global tensor: where it begins, its sizes, its bytes in a file."""

    offset: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    num_bytes: int


@dataclass(frozen=True)
class GlobalTensor:
    """A tensor that is stored in chunks."""

    spec: TensorSpec
    chunks: tuple[Chunk, ...]


def read_metadata(folder: Path) -> tuple[dict[str, GlobalTensor], list[str]]:
    """Return the tensors of a checkpoint by key, and the keys of objects that are no tensors.

    Raises:
        CheckpointError: a checkpoint that is missing, half written, damaged, or that names
            anything but torch's own records.
    """
    path = folder / METADATA
    if not path.is_file():
        raise CheckpointError(
            str(folder),
            f"must hold the file {METADATA}, which is written last",
            "none",
            "The checkpoint is still being written or was never finished: wait, or take another.",
        )
    root = read_inert(path.read_bytes(), _NAMES, path)
    try:
        places = {_place(index): info for index, info in root["storage_data"].items()}
        tensors, objects = {}, []
        for key, entry in root["state_dict_metadata"].items():
            if type(entry).__name__ == "TensorStorageMetadata":
                tensors[key] = _global_tensor(key, entry, places)
            else:
                objects.append(key)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise CheckpointError(
            str(path),
            "must describe chunks of tensors and where they lie",
            f"{type(error).__name__}: {error}",
            "The checkpoint is damaged or of another version of torch: copy or save it again.",
        ) from None
    for key, tensor in tensors.items():
        _check_chunks(folder, key, tensor)
    return tensors, objects


def _place(index: Record) -> tuple[str, tuple[int, ...]]:
    return index["fqn"], tuple(index.state.get("offset") or ())  # torch stores no None


def _global_tensor(key: str, entry: Record, places: Mapping[Any, Record]) -> GlobalTensor:
    dtype = entry["properties"].state[0]
    spec = TensorSpec(dtype, tuple(entry["size"]))
    chunks = []
    for chunk in entry["chunks"]:
        offset, sizes = tuple(chunk["offsets"]), tuple(chunk["sizes"])
        if not len(offset) == len(sizes) == len(spec.shape):
            raise ValueError(f"{key} has chunks of another dimension")
        info = places.get((key, offset)) or places[(key, ())]
        if info.state.get("transform_descriptors"):
            raise ValueError(f"{key} is stored compressed")
        file = info["relative_path"]
        if Path(file).name != file:
            raise ValueError(f"{key} lies outside of the folder: {file}")
        chunks.append(Chunk(offset, sizes, file, info["offset"], info["length"]))
    return GlobalTensor(spec, tuple(chunks))


def _check_chunks(folder: Path, key: str, tensor: GlobalTensor) -> None:
    for chunk in tensor.chunks:
        path = folder / chunk.file
        num_bytes = path.stat().st_size if path.is_file() else None
        if num_bytes is None or chunk.start + chunk.num_bytes > num_bytes:
            needed = chunk.start + chunk.num_bytes
            raise CheckpointError(
                str(path),
                f"must hold {needed} bytes or more",
                "no such file" if num_bytes is None else num_bytes,
                "A shard is missing, truncated or still being written: copy it again.",
            )
    boxes = [tuple(zip(chunk.offset, chunk.sizes, strict=True)) for chunk in tensor.chunks]
    if not _cover(boxes, tensor.spec.shape):
        raise CheckpointError(
            str(folder / METADATA),
            f"must cover all {math.prod(tensor.spec.shape)} elements of {key} exactly once",
            f"{sum(math.prod(chunk.sizes) for chunk in tensor.chunks)} in {len(boxes)} chunks",
            "Ranks are missing from the checkpoint, or it is damaged: save it again.",
        )


def _cover(boxes: Sequence[tuple[tuple[int, int], ...]], shape: tuple[int, ...]) -> bool:
    """Whether boxes of (start, size) in each axis fill a shape without a gap or an overlap.

    The first axis is cut wherever a box begins or ends; the boxes of each slab then have to fill
    the other axes. Chunks of ranks lie in a grid, where this takes linear time.

    Example:
        >>> _cover([((0, 1), (0, 2)), ((1, 1), (0, 2))], (2, 2))
        True
        >>> _cover([((0, 1), (0, 2)), ((0, 1), (0, 2))], (2, 2))
        False
    """
    if not shape:
        return len(boxes) == 1
    cuts = sorted({0, shape[0], *(cut for (at, size), *_ in boxes for cut in (at, at + size))})
    slabs: dict[int, list[tuple[tuple[int, int], ...]]] = {cut: [] for cut in cuts[:-1]}
    numbers = {cut: number for number, cut in enumerate(cuts)}
    for (at, size), *rest in boxes:
        for cut in cuts[numbers[at] : numbers[at + size]]:
            slabs[cut].append(tuple(rest))
    inside = cuts[0] == 0 and cuts[-1] == shape[0]
    return inside and all(_cover(slab, shape[1:]) for slab in slabs.values())


@dataclass(frozen=True)
class WrittenItem:
    """A chunk of a tensor, or an object (without offset and sizes), that lies in a file."""

    key: str
    file: str
    start: int
    num_bytes: int
    offset: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None


def write_metadata(
    folder: Path, specs: Mapping[str, TensorSpec], items: Iterable[WrittenItem]
) -> None:
    """Write the table of contents, and with it declare the checkpoint whole."""
    from torch.distributed.checkpoint import metadata as records
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    contents: dict[str, Any] = {
        key: records.TensorStorageMetadata(
            properties=records.TensorProperties(dtype=spec.dtype),
            size=torch.Size(spec.shape),
            chunks=[],
        )
        for key, spec in specs.items()
    }
    storage = {}
    for item in items:
        offset = None if item.offset is None else torch.Size(item.offset)
        if item.sizes is None:
            contents[item.key] = records.BytesStorageMetadata()
        else:
            chunk = records.ChunkStorageMetadata(offsets=offset, sizes=torch.Size(item.sizes))
            contents[item.key].chunks.append(chunk)
        storage[records.MetadataIndex(item.key, offset)] = _StorageInfo(
            item.file, item.start, item.num_bytes
        )
    with atomic_file(folder / METADATA, binary=True) as file:
        pickle.dump(records.Metadata(contents, storage_data=storage), file)
    with atomic_file(folder / CONFIG) as file:
        json.dump({"sharded_backend": "torch_dist", "sharded_backend_version": 1}, file)
