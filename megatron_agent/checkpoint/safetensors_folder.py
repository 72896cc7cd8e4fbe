"""Reading a Hugging Face folder: which tensors there are, and each of them on demand.

``safetensors`` itself maps whole files, and mapped pages count as memory; here every tensor is read
into memory of its own, so that a conversion needs room for a few tensors and not for a file.
Everything that a header claims is checked against the file before anything is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatron_agent.checkpoint.tensors import TensorSpec, read_into
from megatron_agent.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PICKLE_STARTS = (b"PK", *(bytes((0x80, protocol)) for protocol in range(2, 6)))
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the format itself."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: its file, the first byte there, its type and shape."""

    path: Path
    start: int
    spec: TensorSpec


class SafetensorsFolder:
    """The tensors of a folder, by name.

    Example:
        >>> with SafetensorsFolder(Path("models/tiny")) as folder:  # doctest: +SKIP
        ...     folder.read("model.norm.weight").shape
        torch.Size([64])
    """

    def __init__(self, folder: Path, *, single: str = SINGLE) -> None:
        """Read the headers.

        Args:
            folder: with ``model.safetensors``, or several files and their index.
            single: the name of the one file where there is no index.

        Raises:
            CheckpointError: a file that is missing, truncated, no safetensors file or not what the
                index says; a folder whose weights are pickles; one file beside an index of others.
        """
        self.folder = folder
        self._files: dict[Path, int] = {}
        index = folder / INDEX
        if index.is_file():
            weight_map = _weight_map(index)
            if (folder / single).is_file() and set(weight_map.values()) != {single}:
                raise CheckpointError(
                    str(folder),
                    f"must hold {single} or the shards of an index",
                    "both",
                    f"transformers would load {single}: remove whichever is stale.",
                )
            self.tensors = _read_indexed(folder, weight_map)
        elif (folder / single).is_file():
            self.tensors = read_header(folder / single)
        else:
            raise _no_weights(folder, single)

    def __enter__(self) -> SafetensorsFolder:
        return self

    def __exit__(self, *error: object) -> None:
        for file_no in self._files.values():
            os.close(file_no)
        self._files.clear()

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {name: stored.spec for name, stored in self.tensors.items()}

    def files(self) -> list[Path]:
        return sorted({stored.path for stored in self.tensors.values()})

    def read(self, name: str) -> torch.Tensor:
        stored = self.tensors[name]
        if stored.path not in self._files:
            self._files[stored.path] = os.open(stored.path, os.O_RDONLY)
        tensor = stored.spec.empty()
        read_into(tensor, self._files[stored.path], stored.start, stored.path)
        return tensor


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors that one file holds.

    Raises:
        CheckpointError: not a safetensors file, or not a whole one.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
            raise _broken(path, size)
        text = file.read(length)
    try:
        header = json.loads(text)
        entries = {name: _entry(value) for name, value in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _broken(path, size) from None
    end = 8 + length
    tensors: dict[str, StoredTensor] = {}
    for name, (dtype, shape, start, stop) in sorted(entries.items(), key=lambda item: item[1][2]):
        if dtype not in _DTYPES:
            raise CheckpointError(
                str(path),
                f"must hold types that are known here ({', '.join(_DTYPES)})",
                f"{dtype} for {name}",
                "Quantized weights do not convert: take the model in bfloat16.",
            )
        spec = TensorSpec(_DTYPES[dtype], shape)
        if start != end - 8 - length or stop - start != spec.num_bytes:
            raise CheckpointError(
                str(path),
                "must hold its tensors one after the other, without gaps",
                f"bytes {start} to {stop} for {name} {list(spec.shape)}",
                "The header is wrong: copy or download the file again.",
            )
        tensors[name] = StoredTensor(path, end, spec)
        end += spec.num_bytes
    if end != size:
        raise CheckpointError(
            str(path),
            f"must be {end} bytes long, as its header says",
            size,
            "The file is truncated or still being written: copy or download it again.",
        )
    return tensors


def _entry(value: Any) -> tuple[str, tuple[int, ...], int, int]:
    start, stop = value["data_offsets"]
    return str(value["dtype"]), tuple(map(int, value["shape"])), start, stop


def _broken(path: Path, size: int) -> CheckpointError:
    with path.open("rb") as file:
        beginning = file.read(9)
    what = "a zip archive, as torch.save writes" if beginning[:2] == b"PK" else "a pickle"
    # The length of a header can begin with these bytes, too; JSON then follows it.
    if beginning[:2] in _PICKLE_STARTS and beginning[8:] not in (b"", b"{"):
        return CheckpointError(
            str(path), "must be a safetensors file", what, "Pickles run code; they are never read."
        )
    return CheckpointError(
        str(path),
        "must begin with a safetensors header of a known form",
        f"{size} bytes without one",
        "The file is truncated, damaged or of another format: copy or download it again.",
    )


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not all(Path(file).name == file for file in weight_map.values()):
            raise ValueError
        return dict(weight_map)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            str(index),
            "must be JSON with a weight_map from tensor names to file names",
            "something else",
            "Copy or download the index again.",
        ) from None


def _read_indexed(folder: Path, weight_map: dict[str, str]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(set(weight_map.values())):
        path = folder / file
        if not path.is_file():
            raise CheckpointError(
                str(folder / INDEX),
                f"must name files that exist, {file} among them",
                "no such file",
                "A shard is missing: copy or download it.",
            )
        tensors.update(read_header(path))
    for name in sorted(tensors.keys() ^ weight_map.keys()):
        where = "a shard" if name in tensors else "the index"
        raise CheckpointError(
            str(folder / INDEX),
            "must list exactly the tensors of the shards",
            f"{name} in {where} alone",
            "The index belongs to other shards: copy or download both again.",
        )
    for name, stored in sorted(tensors.items()):
        if stored.path.name != weight_map[name]:
            raise CheckpointError(
                str(folder / INDEX),
                f"must name the shard that holds {name}, {stored.path.name}",
                weight_map[name],
                "The index belongs to other shards: copy or download both again.",
            )
    return tensors


def _no_weights(folder: Path, single: str) -> CheckpointError:
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        return CheckpointError(
            str(folder),
            "must hold safetensors files",
            pickles[0],
            "Weights in pickles run code when they are loaded and are never loaded here: save the "
            "model as safetensors where you trust it.",
        )
    shards = sorted(folder.glob("*.safetensors"))
    if shards:
        return CheckpointError(
            str(folder), f"must hold {INDEX} or {single}", shards[0].name, "Copy the index too."
        )
    return CheckpointError(
        str(folder), f"must hold {single} or {INDEX}", "neither", "Name a folder with weights."
    )
