"""Writing the files of a torch_dist checkpoint, chunk by chunk.

torch's and Megatron's own savers take a model in memory. What is written here is what they write:
one ``torch.save`` after the other, and the table of contents at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from megatron_agent.checkpoint.output_file import OutputFile
from megatron_agent.checkpoint.tensors import as_bytes
from megatron_agent.checkpoint.torch_dist_metadata import WrittenItem


class TorchDistWriter:
    """One ``.distcp`` file.

    Args:
        file: an empty file.
        name: its name in the checkpoint folder.
    """

    def __init__(self, file: OutputFile, name: str) -> None:
        self._file, self._name = file, name
        self.items: list[WrittenItem] = []

    def append(self, key: str, offset: tuple[int, ...], chunk: torch.Tensor) -> None:
        """Append a chunk of the global tensor ``key`` that begins at ``offset`` in it."""
        # torch.save stores the memory that a tensor looks at, not what it shows of it.
        plain = chunk if chunk.untyped_storage().nbytes() == chunk.nbytes else chunk.clone()
        plain = plain.contiguous()
        place = _PlaceForNumbers(self._file, as_bytes(plain))
        with torch.serialization.skip_data():
            self._save(key, plain, offset, tuple(chunk.shape), place)
        assert place.is_filled, key

    def append_object(self, key: str, value: Any) -> None:
        """Append something that is no tensor, in a list as Megatron does."""
        self._save(key, [value], None, None, self._file)

    def _save(
        self,
        key: str,
        value: Any,
        offset: tuple[int, ...] | None,
        sizes: tuple[int, ...] | None,
        file: Any,
    ) -> None:
        start = self._file.num_bytes
        with _no_second_checksum():
            torch.save(value, file)
        num_bytes = self._file.num_bytes - start
        self.items.append(WrittenItem(key, self._name, start, num_bytes, offset, sizes))


class _PlaceForNumbers:
    """A file for a ``torch.save`` that is told to leave a tensor's numbers out: where it seeks past
    them, they are written. ``torch.save`` itself would copy them once more, holding Python's lock.

    Args:
        file: what to write to.
        numbers: all bytes of the one tensor.
    """

    def __init__(self, file: OutputFile, numbers: memoryview) -> None:
        self._file, self._numbers = file, numbers
        self.is_filled = not numbers

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def seek(self, offset: int, whence: int) -> int:
        assert (offset, whence) == (len(self._numbers), os.SEEK_CUR), (offset, whence)
        assert not self.is_filled
        self._file.write(self._numbers)
        self.is_filled = True
        return self._file.num_bytes

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _no_second_checksum() -> Iterator[None]:
    """The file as a whole has a checksum; CRC-32 per tensor would cost as much as the writing."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)
