"""How much memory a worker process holds, and how much it may.

The parent looks, a few times a second, at what the process and everything that it started hold. It
does not set ``RLIMIT_AS``: that limit counts address space, which a Java machine or a threaded
library reserves by the gigabyte and never uses; it counts each child by itself; and a library whose
allocation fails aborts or hangs as often as it raises. Looking from outside needs no help from an
environment that is busy leaking, and says afterwards what happened. The price: a process can pass
the limit between two looks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from megatron_agent.errors import ConfigError

LOOK_EVERY_S = 0.25

_PROC = Path("/proc")
_KEY = "env.worker_memory_limit"
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})")
_MIN_BYTES = 64 * 2**20
_HELD = ("RssAnon:", "RssShmem:", "VmSwap:")
"""Fields of ``/proc/<pid>/status``, in KiB. Pages of files are left out: they cost nothing, since
the kernel can drop them."""


def memory_limit_bytes(limit: int | str | None) -> int | None:
    """A limit as people write it, in bytes; None stays None.

    Raises:
        ConfigError: not a size, or less than a worker needs to start.

    Example:
        >>> memory_limit_bytes("4GiB")
        4294967296
    """
    if limit is None:
        return None
    match = _SIZE.fullmatch(str(limit).strip())
    if match is None:
        raise ConfigError(
            _KEY, "must be bytes or a size in KiB, MiB or GiB", limit, "Use 8GiB, or null."
        )
    num_bytes = int(float(match[1]) * _UNITS[match[2]])
    if num_bytes < _MIN_BYTES:
        raise ConfigError(_KEY, "must be at least 64MiB", limit, "Use 8GiB, or null.")
    return num_bytes


def held_bytes(groups: Collection[int]) -> dict[int, int]:
    """Memory that the processes of each process group hold for themselves.

    Args:
        groups: ids of process groups; a worker and what it starts are one.

    Returns:
        Bytes by group; 0 where they cannot be seen (the group ended, or there is no ``/proc``).
    """
    held = dict.fromkeys(groups, 0)
    for name in os.listdir(_PROC) if _PROC.exists() else ():
        try:
            group = os.getpgid(int(name)) if name.isdigit() else None
            if group in held:
                held[group] += _held_by((_PROC / name / "status").read_text())
        except OSError:
            continue  # it ended meanwhile
    return held


def _held_by(status: str) -> int:
    return sum(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(_HELD)
    )
