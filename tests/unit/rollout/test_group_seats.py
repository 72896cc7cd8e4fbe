"""Redundant starts: who is kept, when that is decided, and what becomes of the others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envs.base import Observation, StepOutcome
from megatron_agent.errors import ConfigError, EnvError, GroupStartError
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.rollout.group_seats import GroupSeats, SeatedSession
from megatron_agent.rollout.pool_stats import PoolStats

pytestmark = pytest.mark.unit


class Gated:
    """An environment whose reset ends when it is told to."""

    num_restores = 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.num_closed = 0

    async def reset(self) -> Observation:
        await self.gate
        return Observation(text=f"environment {self.number}", anchor="start")

    async def step(self, action: str) -> StepOutcome:
        return StepOutcome(
            observation=Observation(text=action, anchor=action),
            reward=float(self.number),
            terminated=True,
            truncated=False,
        )

    async def close(self) -> None:
        self.num_closed += 1


class Group:
    """A group under test: ``num_seats`` sessions that have asked for their start."""

    def __init__(self, num_seats: int, num_spares: int) -> None:
        self.opened: list[Gated] = []
        self.counters = PoolStats()
        self.seats = GroupSeats(self._open, num_spares=num_spares, counters=self.counters)
        self.sessions = [SeatedSession(self.seats) for _ in range(num_seats)]
        self.resets = [asyncio.ensure_future(session.reset()) for session in self.sessions]

    def _open(self, number: int) -> Gated:
        self.opened.append(Gated(number))
        return self.opened[-1]

    async def settle(
        self, order: Sequence[int], errors: Mapping[int, Exception] | None = None
    ) -> None:
        """Let resets end one after the other; of those dropped meanwhile nothing is left to end."""
        await breathe()
        for number in order:
            gate = self.opened[number].gate
            if gate.done():
                continue
            error = (errors or {}).get(number)
            if error is None:
                gate.set_result(None)
            else:
                gate.set_exception(error)
            await breathe()

    def kept(self) -> list[int]:
        return [int(reset.result().text.split()[1]) for reset in self.resets]


async def breathe() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    asyncio.run(main())


def test_seats_go_to_those_that_start_first_and_the_others_are_closed():
    async def body() -> None:
        group = Group(num_seats=3, num_spares=2)
        await group.settle([4, 0, 3, 1, 2])
        assert group.kept() == [4, 0, 3]
        assert [session.num_closed for session in group.opened] == [0, 1, 1, 0, 0]
        assert (group.counters.num_spares_dropped, group.counters.num_spares_used) == (2, 0)
        assert (await group.sessions[0].step("on")).reward == 4.0
        for session in group.sessions:
            await session.close()
        assert [session.num_closed for session in group.opened] == [1, 1, 1, 1, 1]

    run(body)


@pytest.mark.parametrize("finishing_order", list(itertools.permutations(range(3))))
def test_who_is_kept_does_not_depend_on_who_finishes_first(finishing_order: tuple[int, ...]):
    """Every member is played to its end, whatever the others do and however long it takes."""

    async def play(session: SeatedSession, rank: int, finished: list[int]) -> float:
        await session.reset()
        for _ in range(1 + 20 * rank):  # the first to finish takes the fewest steps
            await asyncio.sleep(0)
            outcome = await session.step("on")
        finished.append(rank)
        await session.close()
        return outcome.reward

    async def body() -> None:
        group = Group(num_seats=0, num_spares=2)
        finished: list[int] = []
        members = [
            asyncio.ensure_future(play(SeatedSession(group.seats), rank, finished))
            for rank in finishing_order
        ]
        await group.settle([1, 3, 0, 2, 4])
        assert await asyncio.gather(*members) == [1.0, 3.0, 0.0]
        assert finished == [0, 1, 2]

    run(body)


def test_spares_stand_in_for_resets_that_fail():
    async def body() -> None:
        group = Group(num_seats=2, num_spares=2)
        await group.settle([0, 1, 2, 3], errors={0: EnvError("no level"), 2: EnvError("no level")})
        assert group.kept() == [1, 3]
        assert (group.counters.num_spares_dropped, group.counters.num_spares_used) == (0, 2)
        assert [session.num_closed for session in group.opened] == [1, 0, 1, 0]

    run(body)


def test_more_failures_than_spares_are_failures_of_their_seats():
    async def body() -> None:
        group = Group(num_seats=2, num_spares=1)
        await group.settle([0, 1, 2], errors={0: EnvError("first"), 2: EnvError("third")})
        assert group.resets[0].result().text == "environment 1"
        with pytest.raises(EnvError, match="third"):
            group.resets[1].result()
        assert group.counters.num_spares_used == 1

    run(body)


@pytest.mark.parametrize("error", [GroupStartError("two states"), TypeError("a bug")])
def test_what_is_wrong_with_the_group_is_not_replaced(error: Exception):
    async def body() -> None:
        group = Group(num_seats=2, num_spares=2)
        await group.settle([0], errors={0: error})
        with pytest.raises(type(error), match=str(error)):
            group.resets[0].result()

    run(body)


def test_a_member_that_leaves_makes_room():
    async def body() -> None:
        group = Group(num_seats=2, num_spares=0)
        await breathe()
        group.resets[0].cancel()
        await breathe()
        await group.sessions[0].close()
        await group.settle([0, 1])
        assert group.resets[1].result().text == "environment 0"
        assert [session.num_closed for session in group.opened] == [0, 1]

    run(body)


def test_an_environment_given_to_a_member_that_leaves_at_that_moment_is_closed():
    async def body() -> None:
        group = Group(num_seats=1, num_spares=0)
        await breathe()
        group.opened[0].gate.set_result(None)
        (seat,) = group.seats._waiting
        while not seat.done():
            await asyncio.sleep(0)
        assert group.resets[0].cancel()
        await breathe()
        assert group.resets[0].cancelled()
        await group.sessions[0].close()
        assert group.opened[0].num_closed == 1

    run(body)


def test_a_member_that_comes_late_gets_an_environment_of_its_own():
    async def body() -> None:
        group = Group(num_seats=1, num_spares=1)
        await group.settle([0])
        late = asyncio.ensure_future(SeatedSession(group.seats).reset())
        await group.settle([2])
        assert (await late).text == "environment 2"
        assert len(group.opened) == 3

    run(body)


def test_step_before_reset_is_refused():
    async def body() -> None:
        session = SeatedSession(GroupSeats(Gated, num_spares=1, counters=PoolStats()))
        with pytest.raises(EnvError, match=r"step\(\) came before reset\(\)"):
            await session.step("on")
        await session.close()
        assert session.num_restores == 0

    run(body)


def test_a_reset_that_hangs_does_not_hold_up_a_group_with_spares(
    pools: Any, troublemaker: str, tmp_path: Path
):
    """Two of four environments live in the worker that hangs; the group plays with the others."""
    task = pools.task(troublemaker, start="first_hangs", record=str(tmp_path / "record"))

    async def body(pool: EnvPool) -> None:
        sessions = [await pool.open_session(task, "g", number) for number in range(2)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(session.reset() for session in sessions))
        outcomes = await asyncio.gather(*(session.step("on") for session in sessions))
        assert len({outcome.info["pid"] for outcome in outcomes}) == 1
        for session in sessions:
            await session.close()
        assert pool.stats()["num_spares_dropped"] == 2
        assert pool.stats()["num_env_errors"] == 0

    pools.run(body, num_workers=2, redundancy=2, reset_timeout_s=600.0)


def test_a_group_is_forgotten_with_its_last_session(pools: Any):
    async def body(pool: EnvPool) -> None:
        session = await pools.start(pool, pools.task())
        assert list(pool._seats) == ["g"]
        await session.close()
        del session
        await breathe()
        assert not pool._seats

    pools.run(body, redundancy=1)


def test_redundancy_is_a_count():
    with pytest.raises(ConfigError, match=r"env\.rollout\.redundancy must be >= 0, got -1. Use 0."):
        EnvPool(1, redundancy=-1)
