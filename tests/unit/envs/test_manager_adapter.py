"""A manager in the style of verl-agent runs as it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from envs.base import PromptContext
from envs.checker import check_env
from envs.registry import EnvLoadError, load_env

pytestmark = pytest.mark.unit

MANAGER = '''
from collections import defaultdict

import numpy as np


class NumberEnvs:
    """A batch of environments: say the number. Draws from numpy's global state, as many do."""

    def __init__(self, seed, env_num):
        np.random.seed(seed)
        self.targets = np.random.randint(0, 5, size=env_num)
        self.steps = 0

    def reset(self):
        self.steps = 0
        return [int(target) for target in self.targets], [{} for _ in self.targets]

    def step(self, actions):
        self.steps += 1
        won = [action == target for action, target in zip(actions, self.targets)]
        dones = [is_won or self.steps == 3 for is_won in won]
        infos = [{"won": is_won} for is_won in won]
        return [int(t) for t in self.targets], np.array(won, dtype=float), dones, infos


def number_projection(texts):
    actions, valids = [], []
    for text in texts:
        said = text.split("<action>")[-1].split("</action>")[0].strip()
        valids.append(int(said.isdigit()))
        actions.append(int(said) if said.isdigit() else -1)
    return actions, valids


class NumberManager:
    """Prompts, memory and projection for a batch."""

    def __init__(self, envs, projection_f, config=None):
        self.envs, self.projection_f = envs, projection_f
        self.closed = 0

    def reset(self, kwargs):
        numbers, infos = self.envs.reset()
        self.hint = (kwargs or [{}])[0].get("hint", "Say")
        return self.observe(numbers), infos

    def observe(self, numbers):
        text = [f"{self.hint} {number} in <action></action>." for number in numbers]
        return {"text": text, "image": None, "anchor": numbers}

    def step(self, text_actions):
        actions, valids = self.projection_f(text_actions)
        numbers, rewards, dones, infos = self.envs.step(actions)
        for i, info in enumerate(infos):
            info["is_action_valid"] = np.array(valids[i])
        return self.observe(numbers), rewards, np.array(dones), infos

    def success_evaluator(self, *args, **kwargs):
        success = defaultdict(list)
        for infos, steps in zip(kwargs["total_infos"], kwargs["total_batch_list"]):
            for info, step in zip(reversed(infos), reversed(steps)):
                if step["active_masks"]:
                    success["success_rate"].append(float(info["won"]))
                    break
        return {key: np.array(value) for key, value in success.items()}

    def close(self):
        self.closed += 1


def make_manager(seed, **kwargs):
    """Say the number that you are shown."""
    return NumberManager(NumberEnvs(seed, env_num=1), number_projection)


class Textless(NumberManager):
    def observe(self, numbers):
        return {"text": None, "image": numbers, "anchor": None}


def make_textless(seed):
    return Textless(NumberEnvs(seed, env_num=1), number_projection)


three = 3
'''
NAME = "manager:number_manager:make_manager"


@pytest.fixture(autouse=True)
def number_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repo_root: Path):
    (tmp_path / "number_manager.py").write_text(MANAGER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(repo_root)]))
    yield
    sys.modules.pop("number_manager", None)
    load_env.__globals__["_load_path"].cache_clear()


def test_it_keeps_the_contract():
    check_env(load_env(NAME))


def test_its_text_is_the_prompt_and_its_verdict_the_success():
    spec = load_env(NAME)
    assert spec.description == "Say the number that you are shown."
    env = spec.make()
    start = env.reset(seed=1)
    context = PromptContext(observation=start, step_idx=0, max_steps=3, history=[])
    assert spec.build_prompt(context) == start.text == f"Say {start.anchor} in <action></action>."
    response = spec.format_response(f"hm <action>{start.anchor}</action>")
    parsed = spec.project(response, start.admissible_actions)
    outcome = env.step(parsed.action)
    assert (outcome.reward, outcome.terminated, outcome.action_valid) == (1.0, True, True)
    assert outcome.info["success"] is True


def test_an_episode_that_is_lost_is_no_success():
    env = load_env(NAME).make()
    env.reset(seed=1)
    outcomes = [env.step(text) for text in ("dunno", "<action>9</action>", "<action>x</action>")]
    assert [outcome.action_valid for outcome in outcomes] == [False, True, False]
    assert [outcome.terminated for outcome in outcomes] == [False, False, True]
    assert not outcomes[-1].info["success"]
    with pytest.raises(RuntimeError, match="no episode is running"):
        env.step("x")


def test_options_reach_reset_and_factory():
    env = load_env(NAME).make()
    options = {"env_kwargs": {"hint": "Name"}, "kwargs": {"unused": 1}}
    assert env.reset(seed=1, options=options).text.startswith("Name ")
    env.close()
    env.close()


def test_a_manager_without_texts_is_an_error():
    env = load_env("manager:number_manager:make_textless").make()
    with pytest.raises(TypeError, match=r"\['text'\] must be a list of texts, got None"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("manager:number_manager:nothing", "has no attribute 'nothing'.*Write manager:package"),
        ("manager:no_such:make", "No module named 'no_such'"),
        ("manager:make", "Empty module name"),
        ("manager:number_manager:three", "must name a function that makes a manager, got int"),
    ],
)
def test_a_factory_that_cannot_be_used_says_why(name: str, message: str):
    with pytest.raises(EnvLoadError, match=message):
        load_env(name)
