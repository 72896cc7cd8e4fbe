"""BabyAI levels as text, with BabyAI's own bot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs.babyai.env import ACTIONS, BabyAIEnv, level_id
from envs.babyai.expert import expert
from envs.babyai.view import describe_view
from envs.registry import load_env

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("level", ["GoToLocal-v0", "PickupLoc-v0", "OpenDoorsOrderN2-v0"])
def test_the_bot_fulfils_every_mission(level: str):
    for seed in range(8):
        env = BabyAIEnv()
        env.reset(seed=seed, options={"level": level})
        outcome = None
        while plan := expert(env):
            outcome = env.step(plan[0])
        assert outcome is not None
        assert outcome.info["success"]
        assert 0 < outcome.reward < 1


def test_the_bot_goes_on_after_it_was_not_obeyed():
    env = BabyAIEnv()
    env.reset(seed=3)
    for action in ("turn left", "turn left", "go forward"):
        assert expert(env) == expert(env)  # asking twice changes nothing
        env.step(action)
    while plan := expert(env):
        outcome = env.step(plan[0])
    assert outcome.info["success"]


def test_the_mission_is_the_task_and_stays():
    env = BabyAIEnv()
    start = env.reset(seed=0)
    assert start.task == "go to the green ball"
    assert env.step("turn left").observation.task == start.task


def test_both_views_share_the_anchor():
    words = BabyAIEnv().reset(seed=1, options={"view": "words"})
    grid = BabyAIEnv().reset(seed=1, options={"view": "grid"})
    assert words.anchor == grid.anchor
    assert words.text != grid.text
    assert "You face" in grid.text


def test_turning_around_comes_back_to_the_same_anchor():
    env = BabyAIEnv()
    start = env.reset(seed=1)
    for _ in range(4):
        observation = env.step("turn left").observation
    assert observation.anchor == start.anchor


def test_the_progress_of_a_mission_with_two_parts_is_part_of_the_state():
    env = BabyAIEnv()
    options = {"level": "OpenDoorsOrderN2-v0"}
    observation = next(
        found
        for seed in range(30)
        if " then " in (found := env.reset(seed=seed, options=options)).task
    )
    assert observation.anchor.endswith("a:False() b:False()")
    seen = set()
    while plan := expert(env):
        seen.add(env.step(plan[0]).observation.anchor.rsplit("\n", 1)[-1])
    assert "a:success() b:continue()" in seen


def test_a_level_ends_by_its_own_limit_as_truncated():
    env = BabyAIEnv()
    env.reset(seed=0)
    outcomes = [env.step("turn left") for _ in range(64)]
    assert [outcome.truncated for outcome in outcomes] == [False] * 63 + [True]
    assert not outcomes[-1].terminated
    assert expert(env) == []


def test_minigrid_levels_have_one_action_more_and_no_bot():
    env = BabyAIEnv()
    observation = env.reset(seed=0, options={"level": "MiniGrid-DoorKey-5x5-v0"})
    assert observation.admissible_actions == ACTIONS
    assert expert(env) == []


def test_the_view_names_what_lies_where():
    view = np.ones((7, 7, 3), dtype=np.uint8)  # all empty
    view[3, 4] = (6, 0, 0)  # a red ball two ahead
    view[1, 6] = (5, 2, 0)  # a blue key two to the left
    view[4, 5] = (4, 4, 2)  # a locked door
    view[3, 2] = (2, 5, 0)  # a wall
    assert describe_view(view) == (
        "You see a blue key 2 left, a red ball 2 ahead, a locked yellow door 1 ahead 1 right.\n"
        "The wall in front of you is 4 ahead."
    )


def test_an_empty_view_is_said_to_be_empty():
    view = np.ones((7, 7, 3), dtype=np.uint8)
    assert describe_view(view) == "You see no object.\nThere is no wall in sight in front of you."


@pytest.mark.parametrize("level", ["", "GoToLocal", "Nowhere-v0", "CartPole-v1", 3])
def test_a_level_that_does_not_exist_is_named(level: Any):
    with pytest.raises(ValueError, match=r"option 'level' .* must be a BabyAI level .*, got "):
        load_env("babyai").validate_options({"level": level})


def test_a_level_needs_no_prefix():
    assert level_id("GoTo-v0") == "BabyAI-GoTo-v0"
    assert level_id("MiniGrid-Empty-5x5-v0") == "MiniGrid-Empty-5x5-v0"


def test_drawing_a_level_prints_nothing(capsys: pytest.CaptureFixture[str]):
    env = BabyAIEnv()
    for seed in range(30):
        env.reset(seed=seed)
    assert capsys.readouterr().out == ""
