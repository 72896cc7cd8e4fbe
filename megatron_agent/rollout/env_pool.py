"""Hop 2: a group is n sessions of one task, all starting in the same state.

Environments live in worker processes, several in each; the pool deals sessions out to the worker
with the fewest, and checks at every group's start that its sessions see the same state. What goes
wrong in an environment is an `EnvError` for the sessions of that worker; the pool goes on.

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
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.base import Observation, StepOutcome
from megatron_agent.errors import ConfigError, EnvError, GroupStartError
from megatron_agent.rollout.group_starts import GroupStarts
from megatron_agent.rollout.pool_stats import PoolStats
from megatron_agent.rollout.worker_count import check_num_workers
from megatron_agent.rollout.worker_process import WorkerProcess

if TYPE_CHECKING:
    from megatron_agent.tasks import EnvTask

_log = logging.getLogger(__name__)


class EnvPool:
    """Worker processes full of environments, used inside one asyncio loop.

    Args:
        num_workers: worker processes; checked against this machine by
            `megatron_agent.rollout.worker_count.check_num_workers`.
        reset_timeout_s: deadline for one ``reset``, which also loads the environment's libraries.
        step_timeout_s: deadline for one ``step`` (and one ``close``).
        start_timeout_s: deadline for a worker process to come up.
        close_timeout_s: how long a worker may take to close its environments at the end.
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
        self._num_open = dict.fromkeys(range(num_workers), 0)
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
            await asyncio.gather(*(worker.start() for worker in self._workers))
        except BaseException:
            await self.close()
            raise

    async def open_session(self, task: EnvTask, group_id: str, session_id: int) -> EnvSession:
        """A session on the least busy worker. Nothing runs before its ``reset``."""
        worker_id = min(self._num_open, key=lambda number: self._num_open[number])
        self._num_open[worker_id] += 1
        self._num_sessions += 1
        return EnvSession(
            pool=self,
            worker=self._workers[worker_id],
            task=task,
            group_id=group_id,
            session_id=session_id,
            key=f"{self._num_sessions}",
        )

    async def close(self) -> None:
        """End every worker, within ``close_timeout_s``. May be called twice."""
        await asyncio.gather(*(worker.close(self._close_timeout_s) for worker in self._workers))

    def stats(self) -> dict[str, float]:
        """Counters since the start, and latencies in seconds of the latest calls.

        Keys: ``num_workers``, ``num_worker_replacements``, ``num_open_sessions``, ``num_sessions``,
        ``num_env_errors``, ``num_group_start_errors``, and for ``reset``, ``step`` and ``close``
        ``num_<op>`` and ``<op>_s/p50|p95|p99`` (what the environment took) plus
        ``<op>_wait_s/p95`` (what waiting for the worker and the transport added).
        """
        return {
            "num_workers": float(len(self._workers)),
            "num_worker_replacements": float(
                sum(max(0, worker.num_starts - 1) for worker in self._workers)
            ),
            "num_open_sessions": float(sum(self._num_open.values())),
            "num_sessions": float(self._num_sessions),
            **self.counters.as_dict(),
        }

    def worker_pids(self) -> list[int | None]:
        """Process id of each worker, None for one that is down until its next use."""
        return [worker.pid for worker in self._workers]

    def _session_closed(self, worker_id: int) -> None:
        self._num_open[worker_id] -= 1

    def _check_group_start(self, session: EnvSession, observation: Observation) -> None:
        try:
            self._group_starts.check(
                session.group_id, session.session_id, session.task, observation.anchor
            )
        except GroupStartError:
            self.counters.num_group_start_errors += 1
            raise


class EnvSession:
    """One environment in one worker, for one episode. Made by `EnvPool.open_session`."""

    def __init__(
        self,
        *,
        pool: EnvPool,
        worker: WorkerProcess,
        task: EnvTask,
        group_id: str,
        session_id: int,
        key: str,
    ) -> None:
        self.task, self.group_id, self.session_id = task, group_id, session_id
        self._pool, self._worker, self._key = pool, worker, key
        self._incarnation: int | None = None
        self._is_closed = False

    async def reset(self) -> Observation:
        """Start the task's episode.

        Raises:
            EnvError: the environment or its process failed.
            GroupStartError: another session of the group started in a different state.
        """
        arguments = {
            "env": self.task.env,
            "seed": self.task.seed,
            "options": dict(self.task.options),
        }
        observation = await self._ask("reset", arguments, self._pool.reset_timeout_s)
        self._pool._check_group_start(self, observation)
        return observation

    async def step(self, action: str) -> StepOutcome:
        """Take one action; raises EnvError when the environment or its process failed."""
        if self._incarnation is None:
            raise EnvError(f"{self._who()}: step() came before reset().")
        return await self._ask("step", {"action": action}, self._pool.step_timeout_s)

    async def close(self) -> None:
        """Free the environment. May be called twice, and never raises for what the environment
        does.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._incarnation is not None:
                await self._ask("close", {}, self._pool.step_timeout_s)
        except EnvError as error:
            _log.debug("closing after a failure: %s", error)
        finally:
            self._pool._session_closed(self._worker.worker_id)

    async def _ask(self, operation: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        counters = self._pool.counters
        with counters.timed(operation) as timing:
            try:
                payload, timing.env_s, self._incarnation = await self._worker.ask(
                    operation,
                    self._key,
                    arguments,
                    timeout_s=timeout_s,
                    incarnation=self._incarnation,
                )
            except EnvError as error:
                counters.num_env_errors += operation != "close"
                raise EnvError(f"{self._who()}: {error}") from error
        return payload

    def _who(self) -> str:
        return f"{self.task.env} (seed {self.task.seed}, session {self.session_id})"
