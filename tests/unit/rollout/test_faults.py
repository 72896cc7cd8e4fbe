"""Faults, with real worker processes: what becomes of the episode, and of its neighbours.

Each row of the table in docs/faults.md has its test here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_agent.errors import (
    EnvDiedError,
    EnvError,
    EnvGarbageError,
    EnvLostError,
    EnvMemoryError,
    EnvTimeoutError,
)
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.rollout.env_session import MAX_RESTORES

pytestmark = pytest.mark.unit

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and parent-death signals")


async def kill_and_wait(pid: int, is_running: Callable[[int], bool]) -> None:
    os.kill(pid, signal.SIGKILL)
    while is_running(pid):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("action", "kind", "message"),
    [
        ("hang", EnvTimeoutError, r"environment worker 0 step took more than 4 s"),
        ("die", EnvDiedError, r"environment worker 0 died during step"),
        ("garbage", EnvGarbageError, r"environment worker 0 sent garbage in answer to step"),
    ],
)
def test_who_ends_a_process_fails_and_its_siblings_play_on_where_they_were(
    pools: Any, troublemaker: str, action: str, kind: type[EnvError], message: str
):
    async def body(pool: EnvPool) -> None:
        culprit = await pools.start(pool, pools.task(troublemaker))
        siblings = [await pools.start(pool, pools.task(troublemaker)) for _ in range(3)]
        for sibling in siblings[1:]:
            await sibling.step("on")
        await siblings[2].step("on")
        (old_pid,) = pool.worker_pids()
        with pytest.raises(kind, match=rf"troublemaker \(seed 3, session 0\): {message}"):
            await culprit.step(action)
        outcomes = await asyncio.gather(*(sibling.step("on") for sibling in siblings))
        texts = [outcome.observation.text for outcome in outcomes]
        assert texts == ["step 1", "step 2", "step 3"]
        assert pool.worker_pids() != [old_pid]
        stats = pool.stats()
        assert (stats["num_env_errors"], stats["num_restores"]) == (1, 3)
        assert stats["num_worker_replacements"] == 1
        for session in (culprit, *siblings):
            await session.close()

    pools.run(body, step_timeout_s=4.0)


def test_requests_that_wait_behind_the_one_that_hangs_are_asked_again(
    pools: Any, troublemaker: str
):
    async def body(pool: EnvPool) -> None:
        sessions = [await pools.start(pool, pools.task(troublemaker)) for _ in range(3)]
        actions = ("hang", "on", "on")
        answers = await asyncio.gather(
            *(session.step(action) for session, action in zip(sessions, actions, strict=True)),
            return_exceptions=True,
        )
        assert isinstance(answers[0], EnvTimeoutError)
        assert [answer.observation.text for answer in answers[1:]] == ["step 1", "step 1"]

    pools.run(body, step_timeout_s=4.0)


def test_a_worker_killed_between_two_requests_costs_no_episode(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        sessions = [await pools.start(pool, pools.task(troublemaker)) for _ in range(2)]
        await sessions[0].step("on")
        await kill_and_wait(pool.worker_pids()[0], pools.is_running)
        outcomes = await asyncio.gather(*(session.step("on") for session in sessions))
        assert [outcome.observation.text for outcome in outcomes] == ["step 2", "step 1"]
        assert pool.stats()["num_env_errors"] == 0

    pools.run(body)


def test_a_worker_killed_at_work_costs_the_episode_it_worked_for(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        session = await pools.start(pool, pools.task(troublemaker))
        asyncio.get_running_loop().call_later(0.3, os.kill, pool.worker_pids()[0], signal.SIGKILL)
        with pytest.raises(EnvDiedError, match="died during step"):
            await session.step("hang")
        assert (await (await pools.start(pool, pools.task(troublemaker))).step("on")).reward == 1.0

    pools.run(body)


def test_a_process_that_ends_again_and_again_is_not_survived_for_ever(
    pools: Any, troublemaker: str
):
    async def body(pool: EnvPool) -> None:
        session = await pools.start(pool, pools.task(troublemaker))
        for _ in range(MAX_RESTORES):
            await kill_and_wait(pool.worker_pids()[0], pools.is_running)
            await session.step("on")
        await kill_and_wait(pool.worker_pids()[0], pools.is_running)
        with pytest.raises(EnvLostError, match=r"process of this session is gone: .* died while i"):
            await session.step("on")

    pools.run(body)


def test_an_environment_that_replays_differently_is_not_passed_off_as_the_same(
    pools: Any, troublemaker: str, tmp_path: Path
):
    async def body(pool: EnvPool) -> None:
        task = pools.task(troublemaker, record=str(tmp_path / "record"))
        session = await pools.start(pool, task)
        await session.step("odd")
        await kill_and_wait(pool.worker_pids()[0], pools.is_running)
        with pytest.raises(EnvError, match=r"the same 1 actions led to another state"):
            await session.step("on")

    pools.run(body)


@LINUX
def test_an_environment_that_leaks_is_ended_at_the_limit(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        leaking = await pools.start(pool, pools.task(troublemaker))
        sibling = await pools.start(pool, pools.task(troublemaker))
        await sibling.step("on")
        with pytest.raises(
            EnvMemoryError,
            match=r"worker 0 holds \d+ MiB, more than env\.worker_memory_limit allows \(128 MiB\)",
        ):
            await leaking.step("leak")
        assert (await sibling.step("on")).observation.text == "step 2"
        assert pool.stats()["num_worker_replacements"] == 1

    pools.run(body, worker_memory_limit="128MiB")


def test_a_storm_of_resets_comes_in_waves_and_lets_steps_through(
    pools: Any, troublemaker: str, tmp_path: Path
):
    num_sessions, num_workers = 512, 2
    record = tmp_path / "record"
    task = pools.task(troublemaker, record=str(record))

    async def play(pool: EnvPool, session_id: int) -> str:
        session = await pools.start(pool, task, session_id)
        outcome = await session.step("on")
        await session.close()
        return outcome.observation.text

    async def body(pool: EnvPool) -> None:
        texts = await asyncio.gather(*(play(pool, number) for number in range(num_sessions)))
        assert texts == ["step 1"] * num_sessions

    pools.run(body, num_workers=num_workers)
    events = record.read_text().splitlines()
    running = most = 0
    for event in events:
        running += {"reset begins": 1, "reset ends": -1}.get(event, 0)
        most = max(most, running)
    assert most <= num_workers
    assert events.count("reset ends") == num_sessions
    assert events.index("step on") < num_sessions  # not after a thousand lines about resets


OWNER = """
import asyncio, sys
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.tasks import EnvTask

async def main():
    pool = EnvPool(2)
    await pool.start()
    task = EnvTask(env="troublemaker", task_id="t", seed=0, split="train")
    sessions = [await pool.open_session(task, "g", number) for number in range(2)]
    for session in sessions:
        await session.reset()
    children = [int((await s.step("spawn")).observation.text.split()[1]) for s in sessions]
    if sys.argv[1] == "busy":
        asyncio.create_task(sessions[0].step("hang"))
        await asyncio.sleep(0.1)
    print(*pool.worker_pids(), *children, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@LINUX
@pytest.mark.parametrize("state", ["idle", "busy"])
def test_nothing_outlives_the_owner_of_the_pool(pools: Any, troublemaker: str, state: str):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, state],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 4 and all(pools.is_running(pid) for pid in pids)
        groups = set(pids[:2])
        owner.kill()
        owner.wait()
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s and (members(groups) or any(map(pools.is_running, pids))):
        time.sleep(0.02)
    assert not any(map(pools.is_running, pids))
    assert not members(groups)


def members(groups: set[int]) -> list[int]:
    """Living processes of process groups, guards included."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[2]) in groups and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def test_a_pool_that_is_closed_takes_along_what_its_environments_started(
    pools: Any, troublemaker: str
):
    started: list[int] = []

    async def body(pool: EnvPool) -> None:
        session = await pools.start(pool, pools.task(troublemaker))
        started.append(int((await session.step("spawn")).observation.text.split()[1]))
        assert pools.is_running(started[0])

    pools.run(body)
    deadline_s = time.monotonic() + 10
    while pools.is_running(started[0]) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not pools.is_running(started[0])


def test_a_caller_that_leaves_during_its_reset_leaves_no_environment(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        session = await pool.open_session(pools.task(troublemaker, start="nap"), "g", 0)
        resetting: asyncio.Task[Any] = asyncio.create_task(session.reset())
        await asyncio.sleep(0.1)
        resetting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await resetting
        await session.close()
        stats = pool.stats()
        assert (stats["num_open_sessions"], stats["num_close"]) == (0, 1)

    pools.run(body)
