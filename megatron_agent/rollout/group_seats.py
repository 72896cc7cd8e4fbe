"""Redundant starts: a group opens more environments than it plays, and says which before it plays.

With ``env.rollout.redundancy=r`` a group of n seats starts n + r environments. A seat takes the
next one that has *started*, whichever that is; when every seat is taken, the others are closed. A
reset that is slow, hangs or fails so holds up nobody, as long as there are no more than r of them.

Why at the start and at no other time: whoever is dropped must be dropped for something that has
nothing to do with what its agent does. To keep the first n that *finish* would keep short episodes,
and short episodes are not a fair sample: often they are the ones that succeed early, or fail early.
To replace members that fail in the middle would hide actions that break environments from the agent
that chooses them. Before the first action there is no difference between the members but the luck
of their machines: same task, same seed, same state, checked. So the n that are kept are distributed
exactly like n that were never part of a larger group, and a group keeps its size.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from envs.base import Observation, StepOutcome
from megatron_agent.errors import EnvError, GroupStartError
from megatron_agent.rollout.parts import Session
from megatron_agent.rollout.pool_stats import PoolStats

Start = tuple[Session, Observation]


class GroupSeats:
    """The seats of one group, and the environments that are starting for them.

    Args:
        open_session: opens the environment of a number, from 0; nothing runs before its reset.
        num_spares: environments beyond the number of seats.
        counters: of the pool.
    """

    def __init__(
        self, open_session: Callable[[int], Session], *, num_spares: int, counters: PoolStats
    ) -> None:
        self._open_session = open_session
        self._num_spares = num_spares
        self._counters = counters
        self._num_opened = 0
        self._waiting: deque[asyncio.Future[Start]] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def next_start(self) -> Start:
        """The next environment that has started, and its first observation.

        Raises:
            EnvError: more resets failed than there are spares.
            GroupStartError: the environments do not start in one state.
        """
        seat: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self._waiting.append(seat)
        for _ in range(1 if self._num_opened else 1 + self._num_spares):
            self._starting.add(asyncio.create_task(self._start(self._num_opened)))
            self._num_opened += 1
        try:
            return await seat
        except asyncio.CancelledError:
            if seat.done() and not seat.cancelled() and seat.exception() is None:
                await seat.result()[0].close()  # given a moment ago: it belongs to nobody else
            raise

    async def _start(self, number: int) -> None:
        session = self._open_session(number)
        is_taken = False
        try:
            observation = await session.reset()
            self._settle()
            is_taken = self._take(session, observation)
        except Exception as error:
            self._settle()
            self._failed(error)
        finally:
            self._settle()  # when it was cancelled
            if not is_taken:
                await session.close()

    def _settle(self) -> None:
        """This start is decided; what is left of it is closing."""
        task = asyncio.current_task()
        if task in self._starting:
            self._starting.remove(task)
            self._closing.add(task)  # the event loop keeps no task alive by itself
            task.add_done_callback(self._closing.discard)

    def _take(self, session: Session, observation: Observation) -> bool:
        """Give a started environment to the seat that has waited longest, if one waits."""
        seat = self._next_waiting()
        if seat is not None:
            seat.set_result((session, observation))
        self._counters.num_spares_dropped += seat is None
        if not self._num_waiting():
            self._drop_those_still_starting()
        return seat is not None

    def _failed(self, error: Exception) -> None:
        is_replaced = isinstance(error, EnvError) and len(self._starting) >= self._num_waiting()
        if is_replaced and not isinstance(error, GroupStartError):
            self._counters.num_spares_used += 1
            return
        seat = self._next_waiting()
        if seat is not None:
            seat.set_exception(error)

    def _drop_those_still_starting(self) -> None:
        self._counters.num_spares_dropped += len(self._starting)
        for task in self._starting:
            task.cancel()

    def _num_waiting(self) -> int:
        return sum(not seat.done() for seat in self._waiting)

    def _next_waiting(self) -> asyncio.Future[Start] | None:
        while self._waiting:
            seat = self._waiting.popleft()
            if not seat.done():  # else its caller has left
                return seat
        return None


class SeatedSession:
    """A member of a group with redundant starts; which environment it has is known at its reset."""

    def __init__(self, seats: GroupSeats) -> None:
        self._seats = seats
        self._session: Session | None = None

    @property
    def num_restores(self) -> int:
        return 0 if self._session is None else self._session.num_restores

    async def reset(self) -> Observation:
        """Take the next environment of the group that has started; errors as of `GroupSeats`."""
        if self._session is not None:
            return await self._session.reset()
        self._session, observation = await self._seats.next_start()
        return observation

    async def step(self, action: str) -> StepOutcome:
        """Take one action; raises EnvError when the environment or its process failed."""
        if self._session is None:
            raise EnvError("step() came before reset().")
        return await self._session.step(action)

    async def close(self) -> None:
        """Free the environment, if there is one by now. May be called twice."""
        if self._session is not None:
            await self._session.close()
