"""Variations and splits, options, and the random agent's actions; these need no package."""

from __future__ import annotations

import random

import pytest

from envs.base import Observation, PromptContext
from envs.options import resolve_options
from envs.scienceworld.actions import project, sample_action
from envs.scienceworld.env import OPTION_RULES, ScienceWorldEnv, task_list
from envs.scienceworld.expert import expert
from envs.scienceworld.prompts import build_prompt
from envs.scienceworld.tasks import NUM_VARIATIONS, SPLITS, variations

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("task", NUM_VARIATIONS)
def test_splits_follow_each_other_and_share_nothing(task: str) -> None:
    parts = [variations(task, split) for split in SPLITS]
    assert [number for part in parts for number in part] == list(range(sum(NUM_VARIATIONS[task])))
    assert all(parts)


def test_a_task_list_holds_the_official_variations() -> None:
    options = resolve_options("scienceworld", OPTION_RULES, {"task": "boil"})
    starts = task_list("eval", options)
    assert [start.name for start in starts[:2]] == ["boil-14", "boil-15"]
    assert [start.seed for start in starts[:2]] == [0, 1]
    assert starts[0].options == {"split": "eval"}
    with pytest.raises(ValueError, match="has the splits train, eval, test, got 'dev'"):
        task_list("dev", options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "cook"}, r"'task' .* one of boil, .*, got 'cook'\."),
        ({"split": "dev"}, r"'split' .* one of train, eval, test, got 'dev'\."),
        ({"easy": 1}, r"'easy' .* true \(open doors .* or false, got 1\."),
    ],
)
def test_a_bad_option_names_option_rule_and_value(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_options("scienceworld", OPTION_RULES, given)


def test_a_random_agent_names_things_in_sight() -> None:
    text = "In it, you see:\n\ta picture\n\tan orange\n\tA door to the kitchen (that is open)"
    observation = Observation(text=text, anchor=text)
    actions = {sample_action(random.Random(seed), observation) for seed in range(200)}
    assert {"go to kitchen", "pick up orange", "look at picture", "look around"} <= actions
    nothing = Observation(text="You wait.", anchor=1)
    assert sample_action(random.Random(0), nothing) == "look around"


def test_anything_may_be_said_in_the_tags() -> None:
    said = project("<think>x</think><action> focus on dove </action>", ())
    assert said.action == "focus on dove"
    assert project("focus on dove", ()).reason == "no_action_tag"


def test_the_prompt_tells_task_commands_and_view() -> None:
    observation = Observation(text="A hall.", anchor=1, task="Find a plant.")
    context = PromptContext(observation=observation, step_idx=0, max_steps=9, history=[])
    prompt = build_prompt(context)
    assert prompt.startswith("Find a plant.\nYou act by short commands")
    assert "move X to Y" in prompt
    assert prompt.endswith("Now:\nA hall.")


def test_misuse_is_the_callers_mistake() -> None:
    with pytest.raises(RuntimeError, match="no episode was started"):
        ScienceWorldEnv().step("look around")
    with pytest.raises(TypeError, match="needs a ScienceWorldEnv, got object"):
        expert(object())  # type: ignore[arg-type]
    assert expert(ScienceWorldEnv()) == []
