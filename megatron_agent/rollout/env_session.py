"""One environment in one worker process, for one episode.

A session whose process is ended by somebody else (a sibling that hangs, the kernel's out-of-memory
killer) begins again in the next process: equal seed and options start equal episodes, so the same
actions lead to the same state. That it is the same state is checked. The session that did it, or
was at work when it happened, is not restored: its action may well do it again, and to play on
without the action that ends the process would be to hide it from whoever learns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from envs.base import Observation, StepOutcome
from megatron_agent.anchors import anchor_digest
from megatron_agent.errors import EnvError, EnvLostError, GroupStartError

if TYPE_CHECKING:
    from megatron_agent.rollout.group_starts import GroupStarts
    from megatron_agent.rollout.pool_stats import PoolStats
    from megatron_agent.rollout.worker_process import WorkerProcess
    from megatron_agent.tasks import EnvTask

MAX_RESTORES = 3
"""How often one session is restored: whoever survives so many processes may be their end."""

_log = logging.getLogger(__name__)


class EnvSession:
    """Made by `megatron_agent.rollout.env_pool.EnvPool.open_session`."""

    def __init__(
        self,
        *,
        task: EnvTask,
        group_id: str,
        session_id: int,
        key: str,
        worker: WorkerProcess,
        counters: PoolStats,
        group_starts: GroupStarts,
        reset_timeout_s: float,
        step_timeout_s: float,
    ) -> None:
        self.task, self.group_id, self.session_id = task, group_id, session_id
        self.num_restores = 0
        self._key, self._worker = key, worker
        self._counters, self._group_starts = counters, group_starts
        self._reset_timeout_s, self._step_timeout_s = reset_timeout_s, step_timeout_s
        self._incarnation: int | None = None
        self._actions: list[str] = []
        self._last_seen: Observation | None = None
        self._is_closed = False

    async def reset(self) -> Observation:
        """Start the task's episode.

        Raises:
            AnchorError: the first observation has no anchor that can be compared.
            EnvError: the environment or its process failed.
            GroupStartError: another session of the group started in a different state.
        """
        self._actions.clear()
        try:
            observation = await self._first_observation()
            self._group_starts.check(self.group_id, self.session_id, self.task, observation.anchor)
        except GroupStartError:
            self._counters.num_group_start_errors += 1
            raise
        except EnvError as error:
            raise self._failed(error) from error
        self._last_seen = observation
        return observation

    async def step(self, action: str) -> StepOutcome:
        """Take one action; raises EnvError when the environment or its process failed."""
        if self._last_seen is None:
            raise EnvError(f"{self._who()}: step() came before reset().")
        try:
            outcome = await self._step(action)
        except EnvError as error:
            raise self._failed(error) from error
        self._actions.append(action)
        self._last_seen = outcome.observation
        return outcome

    async def close(self) -> None:
        """Free the environment. May be called twice, and never raises for what the environment
        does.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._incarnation is not None:
                await self._ask("close", {}, self._step_timeout_s)
        except EnvError as error:
            _log.debug("closing after a failure: %s", error)
        finally:
            self._worker.num_sessions -= 1

    async def _first_observation(self) -> Observation:
        while True:
            try:
                return await self._reset()
            except EnvLostError as loss:
                self._note_restore(loss)

    async def _step(self, action: str) -> StepOutcome:
        try:
            return await self._take(action)
        except EnvLostError as loss:
            lost = loss
        while True:
            self._note_restore(lost)
            try:
                await self._replay()
                return await self._take(action)
            except EnvLostError as loss:
                lost = loss

    async def _replay(self) -> None:
        """Be again where the episode was."""
        observation = await self._reset()
        for action in self._actions:
            observation = (await self._take(action)).observation
        assert self._last_seen is not None
        if anchor_digest(observation.anchor) != anchor_digest(self._last_seen.anchor):
            raise EnvError(
                f"after {self._worker.last_death}, the same {len(self._actions)} actions led to "
                f"another state. Make the environment depend on its seed and options alone."
            )

    def _note_restore(self, loss: EnvLostError) -> None:
        if self.num_restores == MAX_RESTORES:
            raise loss
        self.num_restores += 1
        self._counters.num_restores += 1

    async def _reset(self) -> Observation:
        arguments = {
            "env": self.task.env,
            "seed": self.task.seed,
            "options": dict(self.task.options),
        }
        async with self._worker.reset_turn:
            self._incarnation = await self._worker.ready()
            observation: Observation = await self._ask("reset", arguments, self._reset_timeout_s)
        return observation

    async def _take(self, action: str) -> StepOutcome:
        outcome: StepOutcome = await self._ask("step", {"action": action}, self._step_timeout_s)
        return outcome

    async def _ask(self, operation: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        assert self._incarnation is not None
        with self._counters.timed(operation) as timing:
            payload, timing.env_s = await self._worker.ask(
                operation,
                self._key,
                arguments,
                timeout_s=timeout_s,
                incarnation=self._incarnation,
            )
        return payload

    def _failed(self, error: EnvError) -> EnvError:
        """``error`` of the same kind, with this session's name."""
        self._counters.num_env_errors += 1
        return type(error)(f"{self._who()}: {error}")

    def _who(self) -> str:
        return f"{self.task.env} (seed {self.task.seed}, session {self.session_id})"
