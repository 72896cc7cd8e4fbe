"""The pool: groups, and environments that hang, die, raise and lie."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from megatron_agent.errors import AnchorError, ConfigError, EnvError, GroupStartError
from megatron_agent.rollout import worker_count
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.rollout.group_starts import GroupStarts
from megatron_agent.rollout.wire import MAX_FRAME_BYTES
from megatron_agent.rollout.worker_count import check_num_workers

pytestmark = pytest.mark.unit


def test_a_group_plays_in_several_processes_from_one_state(pools: Any):
    async def body(pool: EnvPool) -> None:
        sessions = [await pool.open_session(pools.task(), "g", number) for number in range(4)]
        observations = await asyncio.gather(*(session.reset() for session in sessions))
        assert len({observation.anchor for observation in observations}) == 1
        outcomes = await asyncio.gather(*(session.step("down") for session in sessions))
        assert all(outcome.action_valid for outcome in outcomes)
        assert not (await sessions[0].step("jump")).action_valid
        assert pool.stats()["num_open_sessions"] == 4
        for session in sessions:
            await session.close()
            await session.close()
        stats = pool.stats()
        assert (stats["num_open_sessions"], stats["num_sessions"]) == (0, 4)
        assert (stats["num_reset"], stats["num_step"], stats["num_env_errors"]) == (4, 5, 0)
        assert 0 < stats["step_s/p50"] <= stats["step_s/p95"] <= stats["step_s/p99"] < 1

    pools.run(body, num_workers=2)


def test_sessions_of_one_worker_do_not_disturb_each_other(pools: Any):
    async def body(pool: EnvPool) -> None:
        one, two = await pools.start(pool, pools.task()), await pools.start(pool, pools.task())
        moved = await one.step("down")
        stayed = await two.step("up")
        assert moved.observation.anchor != stayed.observation.anchor

    pools.run(body)


def test_a_group_of_two_tasks_is_an_error_that_names_both(pools: Any):
    async def body(pool: EnvPool) -> None:
        await pools.start(pool, pools.task(seed=3), session_id=0)
        with pytest.raises(
            GroupStartError,
            match=r"group 'g': session 0 \(env 'frozenlake', seed 3\) and session 1 \(env "
            r"'frozenlake', seed 4\) must start in the same state",
        ):
            await pools.start(pool, pools.task(seed=4), session_id=1)
        assert pool.stats()["num_group_start_errors"] == 1

    pools.run(body)


def test_an_environment_that_ignores_its_seed_is_noticed(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        await pools.start(pool, pools.task(troublemaker, start="random"), session_id=0)
        with pytest.raises(GroupStartError, match=r"session 0 .* and session 1 "):
            await pools.start(pool, pools.task(troublemaker, start="random"), session_id=1)

    pools.run(body)


def test_a_group_long_gone_is_forgotten(pools: Any):
    starts = GroupStarts(max_groups=2)
    for group_id in ("a", "b", "c"):
        starts.check(group_id, 0, pools.task(), anchor="here")
    starts.check("a", 0, pools.task(), anchor="there")
    with pytest.raises(GroupStartError, match="group 'c'"):
        starts.check("c", 1, pools.task(), anchor="there")


def test_a_reset_that_hangs_has_its_own_deadline(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        with pytest.raises(EnvError, match=r"reset took more than 5 s"):
            await pools.start(pool, pools.task(troublemaker, start="hang"))
        await pools.start(pool, pools.task(troublemaker))

    pools.run(body, reset_timeout_s=5.0)


def test_waiting_for_a_busy_worker_does_not_count_towards_the_deadline(
    pools: Any, troublemaker: str
):
    async def body(pool: EnvPool) -> None:
        sessions = [await pools.start(pool, pools.task(troublemaker)) for _ in range(6)]
        outcomes = await asyncio.gather(*(session.step("nap") for session in sessions))
        assert len(outcomes) == 6
        assert pool.stats()["step_wait_s/p95"] > 0.5

    pools.run(body, step_timeout_s=1.0)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("raise", r"step raised ZeroDivisionError: the level is broken"),
        ("exit", r"step raised SystemExit: the level wants out"),
        ("wrong type", r"step\(\) must return a StepOutcome, got str"),
        ("nan", r"step\(\) must return a finite reward, got nan"),
    ],
)
def test_an_environment_that_raises_costs_its_own_session_only(
    pools: Any, troublemaker: str, action: str, message: str
):
    async def body(pool: EnvPool) -> None:
        session = await pools.start(pool, pools.task(troublemaker))
        sibling = await pools.start(pool, pools.task(troublemaker))
        with pytest.raises(EnvError, match=message):
            await session.step(action)
        assert (await sibling.step("on")).reward == 1.0
        assert pool.stats()["num_worker_replacements"] == 0

    pools.run(body)


@pytest.mark.parametrize(
    ("start_option", "message"),
    [
        ("raise", r"reset raised OSError: no such level"),
        ("sideways", r"ValueError: option 'start' .* must be one of fixed"),
    ],
)
def test_a_reset_that_fails_is_an_env_error(
    pools: Any, troublemaker: str, start_option: str, message: str
):
    async def body(pool: EnvPool) -> None:
        session = await pool.open_session(pools.task(troublemaker, start=start_option), "g", 0)
        with pytest.raises(EnvError, match=message):
            await session.reset()
        await session.close()
        assert pool.stats()["num_open_sessions"] == 0

    pools.run(body)


def test_a_reset_without_an_anchor_is_an_error_of_its_own(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        session = await pool.open_session(pools.task(troublemaker, start="no_anchor"), "g", 0)
        with pytest.raises(AnchorError, match="anchor must be a value that names the state"):
            await session.reset()
        await session.close()
        assert pool.stats()["num_open_sessions"] == 0

    pools.run(body)


def test_an_unknown_environment_is_an_env_error_with_the_nearest_name(pools: Any):
    async def body(pool: EnvPool) -> None:
        with pytest.raises(EnvError, match="Did you mean 'frozenlake'"):
            await pools.start(pool, pools.task("frozenlak"))

    pools.run(body)


def test_what_environments_print_goes_to_the_log_and_not_onto_the_wire(
    pools: Any, troublemaker: str, tmp_path: Path
):
    async def body(pool: EnvPool) -> None:
        session = await pools.start(pool, pools.task(troublemaker))
        assert (await session.step("print")).reward == 1.0
        with pytest.raises(EnvError):
            await session.step("raise")
        with pytest.raises(EnvError, match=r"last line of .*env_worker_0\.log: 'ZeroDivisionError"):
            await session.step("die")

    pools.run(body, log_dir=tmp_path)
    log = (tmp_path / "env_worker_0.log").read_text()
    assert "chatter on stdout" in log
    assert "Traceback" in log


def test_info_arrives_as_plain_data(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        info = (await (await pools.start(pool, pools.task(troublemaker))).step("on")).info
        assert info == {"success": True, "odd": "<class 'object'>", "pid": pool.worker_pids()[0]}

    pools.run(body)


def test_step_before_reset_is_refused(pools: Any):
    async def body(pool: EnvPool) -> None:
        session = await pool.open_session(pools.task(), "g", 0)
        with pytest.raises(EnvError, match=r"step\(\) came before reset\(\)"):
            await session.step("left")

    pools.run(body)


def test_a_cancelled_caller_does_not_get_the_answers_mixed_up(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        one, two = (
            await pools.start(pool, pools.task(troublemaker)),
            await pools.start(pool, pools.task(troublemaker)),
        )
        napping = asyncio.create_task(one.step("nap"))
        await asyncio.sleep(0.05)
        napping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await napping
        assert (await two.step("on")).observation.text == "step 1"
        assert (await one.step("on")).observation.text == "step 2"

    pools.run(body)


def test_closing_does_not_wait_for_an_environment_that_hangs(pools: Any, troublemaker: str):
    async def body(pool: EnvPool) -> None:
        session = await pools.start(pool, pools.task(troublemaker))
        hanging = asyncio.create_task(session.step("hang"))
        await asyncio.sleep(0.2)
        started_s = time.monotonic()
        await pool.close()
        assert time.monotonic() - started_s < 5
        with pytest.raises(EnvError):
            await hanging
        with pytest.raises(EnvError, match="the pool is closed"):
            await pools.start(pool, pools.task(troublemaker))

    pools.run(body)


def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("megatron_agent.rollout.worker_process._PROGRAM", "no_such_program")

    async def main() -> None:
        pool = EnvPool(1, log_dir=tmp_path)
        with pytest.raises(EnvError, match=r"worker 0 died during start.*No module named no_su"):
            await pool.start()

    asyncio.run(main())


def test_a_worker_that_takes_too_long_to_start_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("megatron_agent.rollout.worker_process._PROGRAM", "this")

    async def main() -> None:
        pool = EnvPool(1, start_timeout_s=0.01)
        with pytest.raises(EnvError, match=r"start took more than 0\.01 s"):
            await pool.start()
        assert pool.worker_pids() == [None]

    asyncio.run(main())


@pytest.mark.parametrize("num_workers", [0, -1, 1.5, None])
def test_a_pool_needs_a_worker(num_workers: Any):
    with pytest.raises(ConfigError, match=r"env\.num_workers must be an integer >= 1"):
        EnvPool(num_workers)


def test_more_workers_than_the_machine_can_run_are_refused():
    with pytest.raises(ConfigError, match=r"must be at most \d+ \(4 for each of \d+ CPUs here\)"):
        check_num_workers(100_000)


def test_a_tight_fit_in_memory_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(worker_count, "_available_memory_bytes", lambda: 1_000_000)
    check_num_workers(1)
    assert "env.num_workers=1 may need 0.1 GB" in caplog.text


@pytest.mark.parametrize(
    "name", ["reset_timeout_s", "step_timeout_s", "start_timeout_s", "close_timeout_s"]
)
def test_deadlines_must_be_positive(name: str):
    with pytest.raises(ConfigError, match=rf"env\.{name} must be > 0 seconds, got 0"):
        EnvPool(1, **{name: 0})


def test_a_frame_limit_is_far_above_any_observation():
    assert MAX_FRAME_BYTES > 100 * 2**20
