"""Experiments on the shared Java machine; these need the extra and a Java."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from envs.checker import check_other_process
from envs.group_check import check_splits
from envs.jvm import java_packages
from envs.nonsense_check import check_nonsense
from envs.registry import load_env
from envs.scienceworld.engine import _jar
from envs.scienceworld.env import ScienceWorldEnv
from envs.scienceworld.expert import expert
from envs.scienceworld.tasks import NUM_VARIATIONS

pytestmark = pytest.mark.unit


@pytest.fixture
def env() -> Iterator[ScienceWorldEnv]:
    made = ScienceWorldEnv()
    yield made
    made.close()
    made.close()


def test_the_expert_wins_also_after_looking(env: ScienceWorldEnv) -> None:
    start = env.reset(seed=0)
    assert start.task.startswith("Your task is to find a(n) living thing.")
    assert start.text.startswith("This room is called the ")
    plan = expert(env)
    looked = env.step("look around")
    assert looked.action_valid
    assert looked.reward == 0
    assert expert(env) == plan
    outcomes = [env.step(action) for action in plan]
    gained = sum(outcome.reward for outcome in outcomes)
    assert gained == pytest.approx(1.0 - looked.info["score"])
    assert outcomes[-1].terminated
    assert outcomes[-1].info == {
        "success": True,
        "score": 1.0,
        "task_type": "find-living-thing",
        "variation": 0,
    }
    assert expert(env) == []
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("look around")


def test_the_expert_gives_up_after_a_detour(env: ScienceWorldEnv) -> None:
    env.reset(seed=0)
    assert env.step("focus on air").terminated is True
    env.reset(seed=0)
    env.step("eat orange")
    assert expert(env) == []


def test_a_mistake_ends_the_episode_at_minus_one(env: ScienceWorldEnv) -> None:
    env.reset(seed=0)
    outcome = env.step("focus on air")
    assert outcome.terminated
    assert outcome.reward < -1
    assert outcome.info["score"] == -1.0
    assert not outcome.info["success"]


@pytest.mark.parametrize(
    "action", ["", "fly", "reset task", "open\ndoor", "x" * 100_000, "\ud800", "\x00"]
)
def test_what_is_not_understood_changes_nothing(env: ScienceWorldEnv, action: str) -> None:
    start = env.reset(seed=0)
    outcome = env.step(action)
    assert not outcome.action_valid
    assert outcome.observation == start
    assert outcome.reward == 0


def test_sessions_in_one_machine_stay_apart(env: ScienceWorldEnv) -> None:
    other = ScienceWorldEnv()
    start = env.reset(seed=0)
    assert other.reset(seed=0) == start
    other.step("go to kitchen")
    there = env.step("look around").observation
    assert there.anchor == start.anchor
    other.close()


def test_a_house_is_used_again_since_java_never_frees_one(env: ScienceWorldEnv) -> None:
    start = env.reset(seed=0)
    env.step("go to kitchen")
    lab = env._lab
    env.close()
    other = ScienceWorldEnv()
    assert other.reset(seed=0) == start
    assert other._lab is lab
    other.close()


def test_the_table_of_variations_is_that_of_the_package() -> None:
    java = java_packages(_jar()).scienceworld.runtime.pythonapi.PythonInterface()
    assert {name: java.getTaskMaxVariations(name) for name in java.getTaskNames()} == {
        name: sum(counts) for name, counts in NUM_VARIATIONS.items()
    }


def test_the_contract_is_kept() -> None:
    spec = load_env("scienceworld")
    options = spec.default_options
    check_splits(spec, options)
    check_nonsense(spec, 0, options)
    check_other_process(spec, 0, options)
