"""Hop 2: a group is n sessions of one task, all starting in the same state.

Environments live in worker processes, several in each; the pool deals sessions out to the worker
with the fewest, and checks at every group's start that its sessions see the same state. What goes
wrong in an environment is an `EnvError` for its session; sessions that lose their process through
another begin again where they were (`megatron_agent.rollout.env_session`). The pool goes on.

Example::

    pool = EnvPool(num_workers=2)
    await pool.start()
    session = await pool.open_session(task, group_id="g0", session_id=0)
    observation = await session.reset()
    outcome = await session.step("left")
    await session.close()
    await pool.close()
"""

from __future__ import annotations

import asyncio
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from megatron_agent.errors import ConfigError
from megatron_agent.rollout.env_session import EnvSession
from megatron_agent.rollout.group_seats import GroupSeats, SeatedSession
from megatron_agent.rollout.group_starts import GroupStarts
from megatron_agent.rollout.pool_stats import PoolStats
from megatron_agent.rollout.worker_count import check_num_workers
from megatron_agent.rollout.worker_memory import LOOK_EVERY_S, held_bytes, memory_limit_bytes
from megatron_agent.rollout.worker_process import WorkerProcess

if TYPE_CHECKING:
    from megatron_agent.tasks import EnvTask


class EnvPool:
    """Worker processes full of environments, used inside one asyncio loop.

    Args:
        num_workers: worker processes; checked against this machine by
            `megatron_agent.rollout.worker_count.check_num_workers`.
        reset_timeout_s: deadline for one ``reset``, which also loads the environment's libraries.
        step_timeout_s: deadline for one ``step`` (and one ``close``).
        start_timeout_s: deadline for a worker process to come up.
        close_timeout_s: how long a worker may take to close its environments at the end.
        worker_memory_limit: bytes, or a size such as ``8GiB``, that a worker process and what it
            starts may hold; one that holds more is replaced. None: no limit.
        redundancy: environments that each group starts beyond its sessions, so that slow and
            failing resets hold up nobody (`megatron_agent.rollout.group_seats`).
        log_dir: folder for what the workers print; None: the stderr of this process.

    Raises:
        ConfigError: a count or a deadline that cannot work.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        reset_timeout_s: float = 60.0,
        step_timeout_s: float = 30.0,
        start_timeout_s: float = 60.0,
        close_timeout_s: float = 5.0,
        worker_memory_limit: int | str | None = None,
        redundancy: int = 0,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        check_num_workers(num_workers)
        for name, value in (
            ("reset_timeout_s", reset_timeout_s),
            ("step_timeout_s", step_timeout_s),
            ("start_timeout_s", start_timeout_s),
            ("close_timeout_s", close_timeout_s),
        ):
            if not value > 0:
                raise ConfigError(f"env.{name}", "must be > 0 seconds", value, "Use 30.")
        if redundancy < 0:
            raise ConfigError("env.rollout.redundancy", "must be >= 0", redundancy, "Use 0.")
        self._redundancy = redundancy
        self._seats: WeakValueDictionary[str, GroupSeats] = WeakValueDictionary()
        """Of groups that have a session left."""
        self.reset_timeout_s = reset_timeout_s
        self.step_timeout_s = step_timeout_s
        self._close_timeout_s = close_timeout_s
        self._workers = [
            WorkerProcess(
                worker_id,
                start_timeout_s=start_timeout_s,
                log_dir=Path(log_dir) if log_dir is not None else None,
            )
            for worker_id in range(num_workers)
        ]
        self._memory_limit = memory_limit_bytes(worker_memory_limit)
        self._memory_watch: asyncio.Task[None] | None = None
        self._num_sessions = 0
        self._group_starts = GroupStarts()
        self.counters = PoolStats()

    async def start(self) -> None:
        """Start every worker.

        On Linux the workers die with the thread that runs this loop, so use one that lives as long
        as the pool.

        Raises:
            EnvError: a worker that does not come up within its deadline; none is left running.
        """
        try:
            await asyncio.gather(*(worker.ready() for worker in self._workers))
        except BaseException:
            await self.close()
            raise
        if self._memory_limit is not None:
            self._memory_watch = asyncio.create_task(self._watch_memory(self._memory_limit))

    async def open_session(
        self, task: EnvTask, group_id: str, session_id: int
    ) -> EnvSession | SeatedSession:
        """A session of a group. Nothing runs before its ``reset``."""
        if not self._redundancy:
            return self._open(task, group_id, session_id)
        seats = self._seats.get(group_id)
        if seats is None:
            seats = self._seats[group_id] = GroupSeats(
                functools.partial(self._open, task, group_id),
                num_spares=self._redundancy,
                counters=self.counters,
            )
        return SeatedSession(seats)

    async def close(self) -> None:
        """End every worker, within ``close_timeout_s``. May be called twice."""
        if self._memory_watch is not None:
            self._memory_watch.cancel()
        await asyncio.gather(*(worker.close(self._close_timeout_s) for worker in self._workers))

    def stats(self) -> dict[str, float]:
        """Counters since the start, and latencies in seconds of the latest calls.

        Keys: ``num_workers``, ``num_worker_replacements``, ``num_open_sessions``, ``num_sessions``,
        ``num_env_errors``, ``num_restores``, ``num_spares_used`` and ``num_spares_dropped`` (with
        ``redundancy``: those that stood in for a failed reset, and those that were not needed),
        ``num_group_start_errors``, and for each of ``reset``, ``step`` and ``close`` ``num_<op>``,
        ``<op>_s/p50|p95|p99`` (what the environment took) and ``<op>_wait_s/p95`` (what waiting for
        the worker and the transport added).
        """
        return {
            "num_workers": float(len(self._workers)),
            "num_worker_replacements": float(
                sum(max(0, worker.num_starts - 1) for worker in self._workers)
            ),
            "num_open_sessions": float(sum(worker.num_sessions for worker in self._workers)),
            "num_sessions": float(self._num_sessions),
            **self.counters.as_dict(),
        }

    def worker_pids(self) -> list[int | None]:
        """Process id of each worker, None for one that is down until its next use."""
        return [worker.pid for worker in self._workers]

    def _open(self, task: EnvTask, group_id: str, session_id: int) -> EnvSession:
        """An environment on the least busy worker."""
        worker = min(self._workers, key=lambda worker: worker.num_sessions)
        worker.num_sessions += 1
        self._num_sessions += 1
        return EnvSession(
            task=task,
            group_id=group_id,
            session_id=session_id,
            key=f"{self._num_sessions}",
            worker=worker,
            counters=self.counters,
            group_starts=self._group_starts,
            reset_timeout_s=self.reset_timeout_s,
            step_timeout_s=self.step_timeout_s,
        )

    async def _watch_memory(self, limit_bytes: int) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            held = held_bytes({worker.pid for worker in self._workers if worker.pid is not None})
            for worker in self._workers:
                worker.check_memory(held.get(worker.pid or 0, 0), limit_bytes)
