"""FrozenLake: the game, its prompt and its expert."""

from __future__ import annotations

import random

import numpy as np
import pytest

from envs.base import PastStep, PromptContext
from envs.frozenlake.env import ACTIONS, FrozenLakeEnv, draw_map, start_key
from envs.frozenlake.expert import expert, shortest_path, slippery_policy
from envs.frozenlake.prompts import build_prompt, corpus
from envs.registry import load_env

pytestmark = pytest.mark.unit

SEED_0 = "P F F F\nH H F F\nF H H F\nH F F G"


def test_the_observation_shows_map_and_player():
    env = FrozenLakeEnv()
    observation = env.reset(seed=0)
    assert observation.text == f"{SEED_0}\nPlayer: row 0 column 0"
    assert observation.anchor == SEED_0
    assert observation.admissible_actions == ("left", "down", "right", "up")


def test_walking_to_the_goal_pays_one_at_the_end():
    env = FrozenLakeEnv()
    env.reset(seed=0)
    outcomes = [env.step(action) for action in ("right", "right", "right", "down", "down", "down")]
    assert [outcome.reward for outcome in outcomes] == [0, 0, 0, 0, 0, 1]
    assert [outcome.terminated for outcome in outcomes] == [False] * 5 + [True]
    assert [outcome.info["success"] for outcome in outcomes] == [False] * 5 + [True]


def test_a_hole_ends_the_episode_without_reward():
    env = FrozenLakeEnv()
    env.reset(seed=0)
    outcome = env.step("down")
    assert (outcome.reward, outcome.terminated, outcome.info["success"]) == (0.0, True, False)


def test_walking_against_the_border_is_legal_and_goes_nowhere():
    env = FrozenLakeEnv()
    start = env.reset(seed=0)
    outcome = env.step("left")
    assert outcome.action_valid
    assert outcome.observation == start


@pytest.mark.parametrize("action", ["", "LEFT", "jump", "x" * 100_000, "\x00", "\ud800", "左"])
def test_an_illegal_action_changes_nothing_and_never_raises(action: str):
    env = FrozenLakeEnv()
    start = env.reset(seed=0)
    outcome = env.step(action)
    assert not outcome.action_valid
    assert (outcome.reward, outcome.terminated, outcome.observation) == (0.0, False, start)
    assert env.step("right").observation.text.endswith("Player: row 0 column 1")


def test_step_without_a_running_episode_is_the_callers_mistake():
    env = FrozenLakeEnv()
    with pytest.raises(RuntimeError, match="no episode was started"):
        env.step("left")
    env.reset(seed=0)
    env.step("down")
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("left")


def test_there_is_no_hidden_step_limit():
    env = FrozenLakeEnv()
    env.reset(seed=0)
    assert not any(env.step("left").truncated for _ in range(300))


def test_the_seed_decides_map_and_slips():
    def walk(seed: int) -> list[str]:
        env = FrozenLakeEnv()
        texts = [env.reset(seed=seed, options={"size": 8, "is_slippery": True}).text]
        while not env.done and len(texts) < 40:
            texts.append(env.step("right").observation.text)
        return texts

    assert walk(5) == walk(5)
    assert walk(5) != walk(6)
    assert "slippery" in walk(5)[0]


def test_global_random_state_is_neither_used_nor_changed():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    first = FrozenLakeEnv().reset(seed=9, options={"is_slippery": True}).text
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    random.seed(2)
    np.random.seed(2)
    assert FrozenLakeEnv().reset(seed=9, options={"is_slippery": True}).text == first


@pytest.mark.parametrize("size", range(4, 9))
def test_every_size_is_played_to_the_goal_by_the_shortest_path(size: int):
    env = FrozenLakeEnv()
    for seed in range(20):
        env.reset(seed=seed, options={"size": size})
        plan = expert(env)
        assert len(plan) >= 2 * (size - 1)
        outcomes = [env.step(action) for action in plan]
        assert outcomes[-1].info["success"]
        assert expert(env) == []


def test_the_shortest_path_goes_around_holes():
    assert shortest_path(["SFF", "HHF", "GFF"], (0, 0)) == [
        "right",
        "right",
        "down",
        "down",
        "left",
        "left",
    ]
    assert shortest_path(["SH", "HG"], (0, 0)) == []


def test_the_slippery_policy_keeps_away_from_holes():
    # In the first column with a hole to the right: "left" slips up or down, never right.
    policy = slippery_policy(("SFFF", "FHFH", "FFFH", "HFFG"))
    assert policy[(1, 0)] == "left"
    assert set(policy.values()) <= set(ACTIONS)


def test_the_slippery_expert_mostly_wins_and_speaks_one_action_at_a_time():
    env, num_won = FrozenLakeEnv(), 0
    for seed in range(30):
        env.reset(seed=seed, options={"is_slippery": True})
        for _ in range(300):
            (action,) = expert(env)
            outcome = env.step(action)
            if outcome.terminated:
                num_won += outcome.info["success"]
                break
    assert num_won >= 24


def test_the_expert_wants_its_own_environment():
    with pytest.raises(TypeError, match="needs a FrozenLakeEnv, got object"):
        expert(object())  # type: ignore[arg-type]


def test_two_seeds_with_one_map_share_a_start_key():
    assert start_key(0, {}) == "SFFF/HHFF/FHHF/HFFG"
    assert start_key(0, {"p": 1.0}) == start_key(1, {"p": 1.0})
    assert draw_map(3, {"size": 5, "p": 0.8}) == draw_map(3, {"size": 5, "p": 0.8})


PROMPT = """\
Cross the frozen lake: move the player P over ice F to the goal G. A hole H ends the game.
Answer with <think>...</think><action>...</action>.
Actions: left, down, right, up.
Past steps:
row 0 column 1: left
row 0 column 0: no legal action
Now:
P F F F
H H F F
F H H F
H F F G
Player: row 0 column 0
Around: left edge, down H, right F, up edge"""


def test_the_prompt_is_short_and_ends_with_the_present():
    observation = FrozenLakeEnv().reset(seed=0)
    history = [
        PastStep(step_idx=1, observation="P\nPlayer: row 0 column 1", action="left"),
        PastStep(step_idx=2, observation=observation.text, action=""),
    ]
    context = PromptContext(observation=observation, step_idx=3, max_steps=20, history=history)
    assert build_prompt(context) == PROMPT
    assert len(PROMPT) < 400  # so the byte-level tokens are fewer still


def test_the_prompt_without_history_has_no_past():
    context = PromptContext(
        observation=FrozenLakeEnv().reset(seed=0), step_idx=0, max_steps=20, history=[]
    )
    assert "Past" not in build_prompt(context)


def test_the_corpus_holds_prompts_and_responses_of_every_size():
    texts = list(corpus())
    assert len(texts) > 300
    assert "<think></think><action>up</action>" in texts
    assert any("row 7 column" in text for text in texts)


def test_the_spec_reads_its_own_responses():
    spec = load_env("frozenlake")
    for action in ACTIONS:
        assert spec.project(spec.format_response(action), ACTIONS).action == action
