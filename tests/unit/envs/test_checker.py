"""Every registered environment keeps the contract, and the checker notices who does not."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from envs.base import Observation, StepOutcome
from envs.checker import (
    check_determinism,
    check_env,
    check_expert,
    check_other_process,
    check_spec,
)
from envs.frozenlake.env import FrozenLakeEnv
from envs.nonsense_check import check_nonsense
from envs.playback import EnvContractError
from envs.registry import EnvSpec, env_names, load_env

pytestmark = pytest.mark.unit

ELSEWHERE = ("alfworld", "appworld", "scienceworld", "textworld", "textworld_express")
"""Each is checked in a folder of its own: with a stand-in, or where its extra is installed
(tests/conftest.py)."""
OPTIONS = {"size": 4, "is_slippery": False, "p": 0.8}


@pytest.mark.parametrize("name", [name for name in env_names() if name not in ELSEWHERE])
def test_every_registered_environment_keeps_the_contract(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    if name == "openenv":
        url = request.getfixturevalue("openenv_url")
        monkeypatch.setenv("MEGATRON_AGENT_OPENENV_URL", f"{url}/hunt")
    spec = load_env(name)
    if spec.check_data is not None:
        monkeypatch.setenv("MEGATRON_AGENT_DATA", str(request.getfixturevalue("shared_data")))
    check_env(spec)


def test_slippery_frozenlake_keeps_the_contract():
    check_env(load_env("frozenlake"), seeds=(4,), options={"size": 6, "is_slippery": True})


class GlobalRandomness(FrozenLakeEnv):
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        random.seed(seed)
        return super().reset(seed=seed, options=options)


class MoveCounter(FrozenLakeEnv):
    num_moves = 0

    def step(self, action: str) -> StepOutcome:
        self.num_moves += 1
        outcome = super().step(action)
        observation = dataclasses.replace(outcome.observation, anchor=self.num_moves)
        return dataclasses.replace(outcome, observation=observation)


class Colourful(FrozenLakeEnv):
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        observation = super().reset(seed=seed, options=options)
        return dataclasses.replace(observation, text="\x1b[31mred\x1b[0m")


class Forgetful(FrozenLakeEnv):
    num_resets = 0

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        Forgetful.num_resets += 1
        return super().reset(seed=Forgetful.num_resets, options=options)


class Obliging(FrozenLakeEnv):
    def step(self, action: str) -> StepOutcome:
        return dataclasses.replace(super().step(action), action_valid=True)


class NoVerdict(FrozenLakeEnv):
    def step(self, action: str) -> StepOutcome:
        return dataclasses.replace(super().step(action), info={})


class IntegerReward(FrozenLakeEnv):
    def step(self, action: str) -> StepOutcome:
        return dataclasses.replace(super().step(action), reward=0)


class SameActionTwice(FrozenLakeEnv):
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        observation = super().reset(seed=seed, options=options)
        return dataclasses.replace(observation, admissible_actions=("left", "left"))


class NoAnchor(FrozenLakeEnv):
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        return dataclasses.replace(super().reset(seed=seed, options=options), anchor=None)


class GreyPicture(FrozenLakeEnv):
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        observation = super().reset(seed=seed, options=options)
        return dataclasses.replace(observation, image=np.zeros((8, 8), dtype=np.uint8))


class ColourfulTask(FrozenLakeEnv):
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        observation = super().reset(seed=seed, options=options)
        return dataclasses.replace(observation, task="\x1b[31mGo.")


def spec_with(**changes: Any) -> EnvSpec:
    return dataclasses.replace(load_env("frozenlake"), **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (GlobalRandomness, "global random state"),
        (Colourful, "must be printable"),
        (Forgetful, "second episode of seed 3 differs"),
        (NoVerdict, "info must hold success"),
        (IntegerReward, "must be a finite float, got 0"),
        (SameActionTwice, "tuple of different texts"),
        (NoAnchor, "an anchor must not be None"),
        (GreyPicture, r"shape \[height, width, 3\], got uint8 \(8, 8\)"),
        (ColourfulTask, "a task text must be printable"),
    ],
)
def test_a_broken_episode_is_noticed(make: type[FrozenLakeEnv], message: str):
    with pytest.raises(EnvContractError, match=message):
        check_determinism(spec_with(make=make), 3, OPTIONS)


@pytest.mark.parametrize(
    ("make", "message"),
    [(MoveCounter, "leave the anchor as it was"), (Obliging, "must have action_valid=False")],
)
def test_an_environment_that_takes_nonsense_is_noticed(make: type[FrozenLakeEnv], message: str):
    with pytest.raises(EnvContractError, match=message):
        check_nonsense(spec_with(make=make), 3, OPTIONS)


def test_a_parser_that_takes_nonsense_is_noticed():
    spec = spec_with(project=lambda text, admissible: load_env("frozenlake").project("", ("x",)))
    check_nonsense(spec, 3, OPTIONS)
    with pytest.raises(EnvContractError, match="must be invalid with a reason"):
        check_nonsense(spec_with(project=lambda text, admissible: None), 3, OPTIONS)


def test_a_factory_without_a_name_is_noticed():
    with pytest.raises(EnvContractError, match="must be picklable by name"):
        check_spec(spec_with(make=lambda: FrozenLakeEnv()))


def test_options_that_are_never_refused_are_noticed():
    class Lenient(EnvSpec):
        def validate_options(self, options: Mapping[str, Any] | None) -> None:
            pass

    lenient = Lenient(
        name="lenient",
        description="",
        make=FrozenLakeEnv,
        build_prompt=load_env("frozenlake").build_prompt,
        project=load_env("frozenlake").project,
    )
    with pytest.raises(EnvContractError, match="must refuse an unknown option"):
        check_spec(lenient)


@pytest.mark.parametrize(
    ("expert", "message"),
    [
        (lambda env: [], "gave up on seed 3"),
        (lambda env: ["jump"], "must read format_response"),
        (lambda env: [] if env.done else ["left"], "needs over 2000 steps"),
        (lambda env: [] if env.done else ["down", "down", "left"], "does not end in success"),
        (lambda env: ["right", "right", "right", "down", "down", "down"], "must have no action"),
    ],
)
def test_a_poor_expert_is_noticed(expert: Any, message: str):
    seed = 0 if "no action" in message or "success" in message else 3
    with pytest.raises(EnvContractError, match=message):
        check_expert(spec_with(expert=expert), seed, OPTIONS)


def test_an_environment_that_plays_differently_elsewhere_is_noticed():
    # The other process knows only the registered FrozenLake, and this one here starts elsewhere.
    Forgetful.num_resets = 100
    with pytest.raises(EnvContractError, match="plays differently in another process"):
        check_other_process(spec_with(make=Forgetful), 3, OPTIONS)


def test_an_environment_that_cannot_be_played_elsewhere_is_noticed():
    with pytest.raises(EnvContractError, match="another process failed"):
        check_other_process(spec_with(name="not registered"), 3, OPTIONS)
