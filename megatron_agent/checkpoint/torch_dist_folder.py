"""Reading tensors of a torch_dist checkpoint, whatever layout wrote it.

A chunk is what ``torch.save`` writes: a zip archive with a pickle of the tensor's form and the raw
numbers. The pickle is only looked at, and the numbers are read from where they lie.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from megatron_agent.checkpoint.inert_pickle import Names, Record, read_inert
from megatron_agent.checkpoint.tensors import TensorSpec, read_into
from megatron_agent.checkpoint.torch_dist_metadata import Chunk, read_metadata
from megatron_agent.errors import CheckpointError

_LOCAL_HEADER_BYTES = 30

_NAMES: Names = {
    "torch._utils": {"_rebuild_tensor_v2": Record},
    "torch": lambda name: Record if name.endswith("Storage") else None,
    "collections": {"OrderedDict": Record},
}


class TorchDistFolder:
    """The global tensors of a checkpoint, by key.

    Example:
        >>> with TorchDistFolder(Path("iter_0000000")) as folder:  # doctest: +SKIP
        ...     folder.read("embedding.word_embeddings.weight", (0, 0), (8, 64)).shape
        torch.Size([8, 64])
    """

    def __init__(self, folder: Path) -> None:
        """Read the table of contents.

        Raises:
            CheckpointError: as :func:`read_metadata`.
        """
        self.folder = folder
        self.tensors, self.objects = read_metadata(folder)
        self._files: dict[str, int] = {}

    def __enter__(self) -> TorchDistFolder:
        return self

    def __exit__(self, *error: object) -> None:
        for file_no in self._files.values():
            os.close(file_no)
        self._files.clear()

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {key: tensor.spec for key, tensor in self.tensors.items()}

    def files(self) -> list[Path]:
        names = {chunk.file for tensor in self.tensors.values() for chunk in tensor.chunks}
        return [self.folder / name for name in sorted(names)]

    def read(self, key: str, offset: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """Return a rectangle of a global tensor, of shape ``sizes``."""
        tensor = self.tensors[key]
        result = TensorSpec(tensor.spec.dtype, sizes).empty()
        num_filled = 0
        for chunk in tensor.chunks:
            bounds = [
                (max(a, b), min(a + m, b + n))
                for a, m, b, n in zip(offset, sizes, chunk.offset, chunk.sizes, strict=True)
            ]
            if any(first >= last for first, last in bounds):
                continue
            target = result[_slices(bounds, offset)]
            if target.shape == chunk.sizes and target.is_contiguous():
                self._read_chunk(chunk, target)
            else:
                whole = TensorSpec(tensor.spec.dtype, chunk.sizes).empty()
                self._read_chunk(chunk, whole)
                target.copy_(whole[_slices(bounds, chunk.offset)])
            num_filled += target.numel()
        assert num_filled == result.numel(), (key, offset, sizes)
        return result

    def _read_chunk(self, chunk: Chunk, target: torch.Tensor) -> None:
        if chunk.file not in self._files:
            self._files[chunk.file] = os.open(self.folder / chunk.file, os.O_RDONLY)
        file_no, path = self._files[chunk.file], self.folder / chunk.file
        start = _find_numbers(file_no, chunk, target.dtype, path)
        read_into(target, file_no, start, path)


def _slices(bounds: list[tuple[int, int]], origin: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(
        slice(first - start, last - start)
        for (first, last), start in zip(bounds, origin, strict=True)
    )


def _find_numbers(file_no: int, chunk: Chunk, dtype: torch.dtype, path: Path) -> int:
    """Return where in the file the raw numbers of a chunk begin."""
    try:
        with zipfile.ZipFile(_Window(file_no, chunk.start, chunk.num_bytes)) as archive:
            entries = {info.filename.split("/", 1)[1]: info for info in archive.infolist()}
        data = os.pread(
            file_no,
            entries["data.pkl"].file_size,
            _entry_start(file_no, chunk, entries["data.pkl"]),
        )
        storage, first, sizes, strides = read_inert(data, _NAMES, path).args[:4]
        numbers = entries[f"data/{storage.args[2]}"]
        if tuple(sizes) != chunk.sizes or first != 0 or not _is_plain(sizes, strides):
            raise ValueError(f"shape {list(sizes)}, strides {list(strides)}")
        if numbers.file_size != math.prod(chunk.sizes) * dtype.itemsize:
            raise ValueError(f"{numbers.file_size} bytes of numbers")
        return _entry_start(file_no, chunk, numbers)
    except CheckpointError:
        raise
    except (zipfile.BadZipFile, ValueError, KeyError, IndexError, AttributeError, OSError) as error:
        raise CheckpointError(
            str(path),
            f"must hold a plain tensor of shape {list(chunk.sizes)} at byte {chunk.start}",
            f"{type(error).__name__}: {error}",
            "The shard is damaged: copy it again.",
        ) from None


def _entry_start(file_no: int, chunk: Chunk, entry: zipfile.ZipInfo) -> int:
    """Return where an archive's entry begins. Read there it is not checked against its CRC-32,
    which torch can be told not to write.
    """
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{entry.filename} is compressed")
    header_start = chunk.start + entry.header_offset
    header = os.pread(file_no, _LOCAL_HEADER_BYTES, header_start)
    name_bytes = int.from_bytes(header[26:28], "little")
    extra_bytes = int.from_bytes(header[28:30], "little")
    return header_start + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes


def _is_plain(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor of these strides lies in memory row by row, without gaps."""
    step = 1
    for size, stride in reversed(list(zip(sizes, strides, strict=True))):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


class _Window(io.RawIOBase):
    """A part of an open file, as a file."""

    def __init__(self, file_no: int, start: int, num_bytes: int) -> None:
        self._file_no, self._start, self._num_bytes = file_no, start, num_bytes
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._num_bytes}
        self._position = max(0, origin[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(0, self._num_bytes - self._position))
        data = os.pread(self._file_no, count, self._start + self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
