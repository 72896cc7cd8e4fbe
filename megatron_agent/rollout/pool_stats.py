"""Counters and latencies of the environment pool."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

OPERATIONS = ("reset", "step", "close")
_WINDOW = 4096
"""Latencies kept per operation: enough for a p99, and a bounded amount of memory."""


@dataclass
class Timing:
    """Filled in by the caller of `PoolStats.timed`: what the environment itself took."""

    env_s: float = 0.0


@dataclass
class _Operation:
    num_calls: int = 0
    env_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    wait_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))


class PoolStats:
    """What happened in a pool so far."""

    def __init__(self) -> None:
        self.num_env_errors = 0
        self.num_restores = 0
        self.num_spares_used = 0
        self.num_spares_dropped = 0
        self.num_group_start_errors = 0
        self._operations = {name: _Operation() for name in OPERATIONS}

    @contextmanager
    def timed(self, operation: str) -> Iterator[Timing]:
        """Time one call; only calls that succeed count towards the latencies."""
        stats, timing = self._operations[operation], Timing()
        stats.num_calls += 1
        started_s = time.perf_counter()
        yield timing
        stats.env_s.append(timing.env_s)
        stats.wait_s.append(time.perf_counter() - started_s - timing.env_s)

    def as_dict(self) -> dict[str, float]:
        """Flat and numeric, ready for a metrics logger."""
        numbers: dict[str, float] = {
            "num_env_errors": float(self.num_env_errors),
            "num_restores": float(self.num_restores),
            "num_spares_used": float(self.num_spares_used),
            "num_spares_dropped": float(self.num_spares_dropped),
            "num_group_start_errors": float(self.num_group_start_errors),
        }
        for name, stats in self._operations.items():
            numbers[f"num_{name}"] = float(stats.num_calls)
            for percent in (50, 95, 99):
                numbers[f"{name}_s/p{percent}"] = percentile(stats.env_s, percent)
            numbers[f"{name}_wait_s/p95"] = percentile(stats.wait_s, 95)
        return numbers


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of the values do not exceed; 0 for no values.

    Example:
        >>> percentile([3.0, 1.0, 2.0], 50)
        2.0
    """
    ordered = sorted(values)
    if not ordered:
        return 0.0
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]
