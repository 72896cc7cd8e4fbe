"""Files that appear under their name only when they are complete, and are on the disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_file(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file to write to that takes the place of ``path`` when the block ends without an error.

    Until then, and after an error, ``path`` holds what it held before, and nothing else is left.

    Args:
        path: where the file appears; its folder exists.
        binary: open for bytes instead of UTF-8 text.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> with atomic_file(folder / "note") as file:
        ...     _ = file.write("whole")
        ...     (folder / "note").exists()
        False
        >>> (folder / "note").read_text()
        'whole'
    """
    handle, temp_name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(
            handle, "wb" if binary else "w", encoding=None if binary else "utf-8"
        ) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temp_name, 0o644)  # mkstemp makes files that only the owner can read
        os.replace(temp_name, path)
    except BaseException:
        Path(temp_name).unlink(missing_ok=True)
        raise


def sync_to_disk(path: Path) -> None:
    """Wait until a file's contents, or a folder's list of files, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
