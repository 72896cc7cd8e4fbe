"""More of the contract of `envs.checker`: what is not an action is refused and changes nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

from envs.base import Observation, ParsedAction, StepOutcome, TextEnv
from envs.playback import any_action, check_observation, check_outcome, ended, require, same_anchor
from envs.spec import EnvSpec
from envs.surroundings import left_alone

NONSENSE: tuple[str, ...] = (
    "",
    " ",
    "\n\t",
    "no such action",
    "<action></action>",
    "\x00\x1b[31m",
    "\u202e\ud800 \U0001f9ca",
    "x" * 100_000,
)
_NUM_STATES = 3
"""The start, and states after a legal action or two: what raises often does so later."""
_NUM_REFUSALS = 200
"""Refusals in a row: an end among them comes from a limit, since nothing happened."""
_REFUSALS_S = 1.0
"""Time for them, should each be slow."""


def check_nonsense(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> None:
    """Nonsense is refused, politely and without effect, by the parser and by the environment."""
    rng, env = random.Random(seed), spec.make()
    with left_alone(spec.name):
        observation = env.reset(seed=seed, options=options)
        check_observation(spec, observation)
        for number in range(_NUM_STATES):
            for text in NONSENSE:
                outcome = _say(spec, env, text, observation)
                is_action = not _is_nonsense(text, observation)
                if ended(outcome) or (is_action and number == 0):
                    observation = env.reset(seed=seed, options=options)
                else:
                    observation = outcome.observation
            outcome = env.step(any_action(spec, rng, observation))
            observation = outcome.observation
            if ended(outcome):
                observation = env.reset(seed=seed, options=options)
        observation = env.reset(seed=seed, options=options)
        until_s = time.perf_counter() + _REFUSALS_S
        for _ in range(_NUM_REFUSALS):
            if ended(_say(spec, env, "", observation)) or time.perf_counter() > until_s:
                break
    env.close()


def _is_nonsense(text: str, observation: Observation) -> bool:
    """Where actions are any text, nobody can say what is nonsense; blank text always is."""
    return bool(observation.admissible_actions) or not text.strip()


def _say(spec: EnvSpec, env: TextEnv, text: str, before: Observation) -> StepOutcome:
    is_nonsense = _is_nonsense(text, before)
    parsed = spec.project(text, before.admissible_actions)
    require(
        isinstance(parsed, ParsedAction)
        and (parsed.valid or bool(parsed.reason))
        and not (parsed.valid and is_nonsense),
        f"{spec.name}: project({text[:20]!r}) must be invalid with a reason, got {parsed!r}.",
    )
    outcome = env.step(text)
    check_outcome(spec, outcome)
    if not is_nonsense:
        return outcome
    require(
        not outcome.action_valid and not outcome.terminated,
        f"{spec.name}: step({text[:20]!r}) must have action_valid=False and go on; what a limit "
        f"cuts is truncated.",
    )
    require(
        same_anchor(outcome.observation, before),
        f"{spec.name}: a refused action must leave the anchor as it was. A move counter or an "
        f"echo of the action does not belong into an anchor.",
    )
    require(
        outcome.reward <= 0,
        f"{spec.name}: a refused action must have reward 0, or a penalty below, got "
        f"{outcome.reward!r} for {text[:20]!r}.",
    )
    return outcome
