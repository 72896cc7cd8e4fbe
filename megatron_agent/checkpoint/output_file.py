"""Files of a conversion: hashed while they are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class FileRecord:
    """Length and XXH3-128 hash of a file. The hash finds damage; it does not prove an origin."""

    num_bytes: int
    xxh3_128: str


class OutputFile:
    """A file that is written once, front to back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = xxhash.xxh3_128()
        self.num_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append. torch.save and everything else that writes takes this for a file."""
        self._hash.update(data)
        self._file.write(data)
        self.num_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    def record(self) -> FileRecord:
        return FileRecord(self.num_bytes, self._hash.hexdigest())


@contextmanager
def output_file(path: Path) -> Iterator[OutputFile]:
    """Open a file for writing. It is complete when the block ends, and may not be on disk yet."""
    with path.open("wb") as file:
        yield OutputFile(file)


def hash_file(path: Path) -> FileRecord:
    """Read a file and return what :class:`OutputFile` recorded when it was written."""
    digest, num_bytes = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
    return FileRecord(num_bytes, digest.hexdigest())
