"""Taxi, CliffWalking and Blackjack: texts, experts, splits."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from envs.base import PastStep, PromptContext
from envs.known_dynamics import best_actions, follow
from envs.registry import load_env
from megatron_agent.tasks import generate_tasks

pytestmark = pytest.mark.unit


def play_expert(name: str, seed: int, options: dict[str, Any]) -> tuple[bool, float, int]:
    spec = load_env(name)
    assert spec.expert is not None
    env = spec.make()
    env.reset(seed=seed, options=options)
    total, num_steps, success = 0.0, 0, False
    while plan := spec.expert(env):
        outcome = env.step(plan[0])
        total, num_steps = total + outcome.reward, num_steps + 1
        success = outcome.info["success"]
        assert num_steps < 1000
    return success, total, num_steps


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("taxi", {}),
        ("taxi", {"is_rainy": True}),
        ("taxi", {"fickle_passenger": True}),
        ("cliffwalking", {}),
        ("cliffwalking", {"is_slippery": True}),
        ("cliffwalking", {"random_start": False}),
    ],
)
def test_the_expert_always_succeeds(name: str, options: dict[str, Any]):
    played = [play_expert(name, seed, options) for seed in range(20)]
    assert all(success for success, _, _ in played)


def test_the_taxi_expert_takes_no_detour():
    played = [play_expert("taxi", seed, {}) for seed in range(50)]
    assert max(num_steps for _, _, num_steps in played) <= 18
    assert all(total == 21 - num_steps for _, total, num_steps in played)


def test_the_classical_cliff_is_passed_in_thirteen_steps():
    assert play_expert("cliffwalking", 0, {"random_start": False}) == (True, -13.0, 13)


def test_the_blackjack_expert_loses_less_than_a_random_player():
    gains = [play_expert("blackjack", seed, {})[1] for seed in range(1500)]
    assert fmean(gains) > -0.1  # a random player loses 0.39 a game


@pytest.mark.parametrize(
    ("hand", "dealer", "action"),
    [
        ([10, 6], 10, "hit"),
        ([10, 6], 6, "stick"),
        ([10, 2], 4, "stick"),
        ([10, 2], 2, "hit"),
        ([1, 6], 6, "hit"),
        ([1, 8], 6, "stick"),
        ([10, 1], 10, "stick"),
    ],
)
def test_blackjack_follows_basic_strategy(hand: list[int], dealer: int, action: str):
    spec = load_env("blackjack")
    assert spec.expert is not None
    env: Any = spec.make()
    env.reset(seed=0)
    env.gym.player, env.gym.dealer = hand, [dealer, 5]
    assert spec.expert(env) == [action]


@pytest.mark.parametrize("name", ["taxi", "cliffwalking", "blackjack"])
def test_no_start_is_in_both_splits(name: str):
    spec = load_env(name)
    assert spec.start_key is not None
    tasks = generate_tasks(name, num_train=60, num_eval=30)
    starts = {
        split: {spec.start_key(task.seed, {}) for task in tasks if task.split == split}
        for split in ("train", "eval")
    }
    assert starts["train"] and starts["eval"]
    assert not starts["train"] & starts["eval"]


def test_a_start_key_tells_the_start_that_reset_gives():
    spec = load_env("taxi")
    assert spec.start_key is not None
    for seed in range(5):
        assert spec.start_key(seed, {}) == spec.make().reset(seed=seed).anchor


def test_a_blackjack_game_shows_the_dealers_hand_at_its_end():
    env = load_env("blackjack").make()
    env.reset(seed=0)
    outcome = env.step("stick")
    assert outcome.terminated
    assert "The dealer has: 10, " in outcome.observation.text


@pytest.mark.parametrize("name", ["taxi", "cliffwalking", "blackjack", "babyai"])
def test_an_expert_wants_its_own_environment(name: str):
    expert = load_env(name).expert
    assert expert is not None
    with pytest.raises(TypeError, match=r"needs a \w+Env, got object"):
        expert(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["taxi", "cliffwalking", "blackjack", "babyai"])
def test_step_without_a_running_episode_is_the_callers_mistake(name: str):
    spec = load_env(name)
    env: Any = spec.make()
    with pytest.raises(RuntimeError, match=f"{name}: no episode was started"):
        env.step("left")
    with pytest.raises(RuntimeError, match=f"{name}: no episode was started"):
        _ = env.options


def test_step_after_the_end_is_the_callers_mistake():
    env = load_env("blackjack").make()
    env.reset(seed=0)
    env.step("stick")
    with pytest.raises(RuntimeError, match="blackjack: the episode is over"):
        env.step("stick")


def test_a_taxi_prompt_tells_the_past_in_one_line_a_step():
    spec = load_env("taxi")
    observation = spec.make().reset(seed=0)
    past = PastStep(step_idx=0, observation=observation.text, action="south")
    context = PromptContext(observation=observation, step_idx=1, max_steps=9, history=[past])
    prompt = spec.build_prompt(context)
    assert "\nTaxi: row 3 column 0. Passenger: at B. Did: south\nNow:\n+---" in prompt


def test_a_table_of_rules_that_chance_decides_gives_one_action_at_a_time():
    chance = {0: {0: [(0.5, 0, 0.0, False), (0.5, 1, 1.0, True)]}, 1: {0: [(1.0, 1, 0.0, True)]}}
    assert follow(chance, best_actions(chance), 0) == [0]


def test_a_policy_that_never_ends_gives_one_action():
    circle = {0: {0: [(1.0, 1, 0.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)]}}
    assert follow(circle, [0, 0], 0) == [0]
