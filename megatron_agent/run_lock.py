"""One process in a run folder at a time.

Two runs in one folder would remove each other's checkpoints and mix their metrics. The lock is the
kernel's (``flock``): it ends with the process, however that ends, so a file left behind by a dead
process keeps nobody out.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from pathlib import Path

from megatron_agent.errors import ConfigError

logger = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
_NOT_SUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

_held: dict[tuple[int, int], int] = {}
"""Lock files (device, inode) that this process holds, and the descriptors that hold them until it
ends."""


def hold_run(run_dir: Path) -> None:
    """Keep other processes out of ``run_dir`` until this one ends; more calls change nothing.

    Args:
        run_dir: folder of the run; created when absent.

    Raises:
        ConfigError: another process is in the folder (the message names both), or there can be no
            such folder, or none that can be written to.

    Example:
        >>> hold_run(Path("runs/demo"))  # doctest: +SKIP
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        # Not inherited by programs that this process starts, or a survivor would hold the folder.
        descriptor = os.open(run_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unusable(run_dir, error) from error
    status = os.fstat(descriptor)
    file_id = (status.st_dev, status.st_ino)
    if file_id in _held:
        os.close(descriptor)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
        os.close(descriptor)
        raise ConfigError(
            "run.dir",
            f"must not be in use by another process ({holder or 'it has not said which'})",
            str(run_dir),
            "Wait for it, stop it, or start another run with run.name=... .",
        ) from None
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            os.close(descriptor)
            raise
        logger.warning("%s cannot be locked (%s): start no second run in it.", run_dir, error)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError as error:  # a full disk
        os.close(descriptor)
        raise _unusable(run_dir, error) from error
    _held[file_id] = descriptor


def _unusable(run_dir: Path, error: OSError) -> ConfigError:
    place = f": {error.filename}" if error.filename else ""
    return ConfigError(
        "run.dir",
        f"must be a folder that can be made and written to ({error.strerror or error}{place})",
        str(run_dir),
        "Choose another one with run.dir=... , or mend this one.",
    )
