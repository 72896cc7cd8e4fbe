"""Whether a folder that does not exist yet could be made, found out by trying."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def nearest_existing(path: Path) -> Path:
    """``path``, or the first of its parents that exists, be it a folder or not.

    Example:
        >>> nearest_existing(Path("/no/such/folder"))
        PosixPath('/')
    """
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if os.path.lexists(folder))


def write_fault(folder: Path) -> str:
    """Why no folder can be made in ``folder``; empty when one could, and is gone again.

    Permissions do not tell: root has them all, and some file systems take nothing from anybody.
    """
    try:
        tempfile.TemporaryDirectory(dir=folder, prefix=".write-test-").cleanup()
    except OSError as fault:
        return fault.strerror or str(fault)
    return ""
