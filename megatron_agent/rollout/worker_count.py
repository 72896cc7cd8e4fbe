"""How many worker processes this machine can take."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from megatron_agent.errors import ConfigError

_log = logging.getLogger(__name__)

MAX_WORKERS_PER_CPU = 4
WORKER_MEMORY_BYTES = 100 * 2**20
"""What a worker with a light environment takes; heavy ones (a JVM, a catalogue) take more."""


def check_num_workers(num_workers: int) -> None:
    """Check a worker count against this machine; a tight fit in memory is only logged.

    Raises:
        ConfigError: fewer than one, or more than `MAX_WORKERS_PER_CPU` for each CPU.
    """
    if not isinstance(num_workers, int) or num_workers < 1:
        raise ConfigError("env.num_workers", "must be an integer >= 1", num_workers, "Use 2.")
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = MAX_WORKERS_PER_CPU * (num_cpus or 1)
    if num_workers > limit:
        raise ConfigError(
            "env.num_workers",
            f"must be at most {limit} ({MAX_WORKERS_PER_CPU} for each of {num_cpus} CPUs here)",
            num_workers,
            "A worker holds many environments; lower it.",
        )
    available = _available_memory_bytes()
    if available is not None and num_workers * WORKER_MEMORY_BYTES > available:
        _log.warning(
            "env.num_workers=%d may need %.1f GB and %.1f GB are free; lower it if workers die.",
            num_workers,
            num_workers * WORKER_MEMORY_BYTES / 1e9,
            available / 1e9,
        )


def _available_memory_bytes() -> int | None:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
