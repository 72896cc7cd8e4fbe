"""One episode of random legal actions, with every value checked on the way.

`envs.checker` compares the digests of such episodes; as a program this module plays one in another
process.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.anchor_types import unfit_part
from envs.base import Observation, PastStep, PromptContext, StepOutcome, TextEnv
from envs.registry import EnvSpec, load_env
from envs.tags import format_response

_MAX_STEPS = 30
_GUESSES = ("look", "left", "1", "help")
"""What is said, in and out of tags, where nobody says what is legal."""


class EnvContractError(AssertionError):
    """An environment broke a promise of `envs.base.TextEnv` or `envs.registry.EnvSpec`."""


def play(
    spec: EnvSpec,
    env: TextEnv,
    seed: int,
    options: Mapping[str, Any],
    *,
    neighbour: TextEnv | None = None,
) -> str:
    """Digest of an episode of random legal actions, every value checked on the way.

    Args:
        neighbour: another started environment, which gets a refused action before every step.
    """
    rng = random.Random(seed)
    observation = env.reset(seed=seed, options=options)
    trace = [_fingerprint(observation)]
    history: list[PastStep] = []
    for step_idx in range(_MAX_STEPS):
        check_observation(spec, observation)
        context = PromptContext(
            observation=observation, step_idx=step_idx, max_steps=_MAX_STEPS, history=history[-2:]
        )
        prompt = spec.build_prompt(context)
        check_text(prompt, f"{spec.name}: a prompt")
        for admissible in observation.admissible_actions:
            check_sayable(spec, admissible, observation)
        if neighbour is not None:
            neighbour.step("")
        action = any_action(spec, rng, observation)
        outcome = env.step(action)
        check_outcome(spec, outcome)
        require(
            outcome.action_valid or action not in observation.admissible_actions,
            f"{spec.name}: {action!r} is admissible at step {step_idx} of seed {seed}, and step() "
            f"calls it invalid.",
        )
        trace.append(f"{prompt}|{_fingerprint(outcome.observation)}|{outcome.reward!r}")
        if ended(outcome):
            break
        history.append(PastStep(step_idx=step_idx, observation=observation.text, action=action))
        observation = outcome.observation
    return hashlib.sha256("\n".join(trace).encode()).hexdigest()


def has_actions(spec: EnvSpec, observation: Observation) -> bool:
    """Whether anybody says what is legal: otherwise random play only guesses."""
    return spec.sample_action is not None or bool(observation.admissible_actions)


def any_action(spec: EnvSpec, rng: random.Random, observation: Observation) -> str:
    """A legal action; where nobody says what is legal a guess, so that at least texts come in."""
    if has_actions(spec, observation):
        return spec.random_action(rng, observation)
    guess = rng.choice(_GUESSES)
    return rng.choice((guess, format_response(guess)))


def ended(outcome: StepOutcome) -> bool:
    """Whether the episode is over."""
    return outcome.terminated or outcome.truncated


def check_sayable(spec: EnvSpec, action: str, observation: Observation) -> None:
    """Raise EnvContractError unless a response can say ``action``."""
    parsed = spec.project(spec.format_response(action), observation.admissible_actions)
    require(
        parsed.valid and parsed.action == action,
        f"{spec.name}: project must read format_response({action!r}) back, got {parsed!r}.",
    )


def same_anchor(one: Observation, other: Observation) -> bool:
    """Whether both are of one state."""
    return bool(anchor_key(one.anchor) == anchor_key(other.anchor))


def anchor_key(anchor: Any) -> Any:
    """``anchor`` as something that ``==`` compares and ``repr`` shows whole, arrays included."""
    if isinstance(anchor, np.ndarray):
        return anchor.dtype.str, anchor.shape, anchor.tobytes()
    if isinstance(anchor, tuple | list):
        return tuple(map(anchor_key, anchor))
    if isinstance(anchor, Mapping):
        return tuple(sorted((str(key), anchor_key(value)) for key, value in anchor.items()))
    return anchor


def _fingerprint(observation: Observation) -> str:
    anchor = anchor_key(observation.anchor)
    return f"{observation.text}|{anchor!r}|{observation.admissible_actions!r}"


def check_observation(spec: EnvSpec, observation: Observation) -> None:
    """Raise EnvContractError unless types, texts and anchor are as promised."""
    require(isinstance(observation, Observation), f"{spec.name}: reset() must give an Observation.")
    check_text(observation.text, f"{spec.name}: an observation")
    if observation.task:
        check_text(observation.task, f"{spec.name}: a task text")
    require(observation.anchor is not None, f"{spec.name}: an anchor must not be None.")
    unfit = unfit_part(observation.anchor)
    require(
        not unfit,
        f"{spec.name}: an anchor must be a text, bytes, a number, an array, or tuples, lists and "
        f"dicts of these, but {unfit}. Convert it, for example with str(...) or sorted(...).",
    )
    check_image(spec, observation.image)
    actions = observation.admissible_actions
    require(
        isinstance(actions, tuple) and len(set(actions)) == len(actions),
        f"{spec.name}: admissible_actions must be a tuple of different texts, got {actions!r}.",
    )
    for action in actions:
        check_text(action, f"{spec.name}: an admissible action")


def check_image(spec: EnvSpec, image: Any) -> None:
    """Raise EnvContractError unless ``image`` is an RGB picture or None."""
    is_picture = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3
    require(
        image is None or (is_picture and image.shape[2] == 3 and image.size > 0),
        f"{spec.name}: an image must be an array of uint8 and shape [height, width, 3], got "
        f"{getattr(image, 'dtype', type(image).__name__)} {getattr(image, 'shape', '')}.",
    )


def check_outcome(spec: EnvSpec, outcome: StepOutcome) -> None:
    """Raise EnvContractError unless reward, info and observation are as promised."""
    require(isinstance(outcome, StepOutcome), f"{spec.name}: step() must give a StepOutcome.")
    require(
        isinstance(outcome.reward, float) and math.isfinite(outcome.reward),
        f"{spec.name}: a reward must be a finite float, got {outcome.reward!r}.",
    )
    require(
        isinstance(outcome.info.get("success"), bool),
        f"{spec.name}: info must hold success as a bool, got {outcome.info!r}.",
    )
    for field in ("terminated", "truncated", "action_valid"):
        value = getattr(outcome, field)
        require(
            isinstance(value, bool | np.bool_),
            f"{spec.name}: {field} must be True or False, got {value!r}.",
        )
    require(
        not (outcome.terminated and outcome.truncated),
        f"{spec.name}: a step must not be terminated and truncated at once; terminated is what the "
        f"task's own rules say, truncated what cuts it from outside.",
    )
    check_text(outcome.observation.text, f"{spec.name}: an observation")


def check_text(text: Any, what: str) -> None:
    """Raise EnvContractError unless ``text`` is a printable text."""
    require(isinstance(text, str) and bool(text.strip()), f"{what} must be a text, got {text!r}.")
    bad = next((char for char in text if not (char.isprintable() or char in "\n\t")), None)
    require(bad is None, f"{what} must be printable (no colour codes), got {bad!r} in it.")


def require(condition: bool, message: str) -> None:
    """Raise EnvContractError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise EnvContractError(message)


def main() -> None:
    """``python -m envs.playback NAME SEED OPTIONS_JSON`` writes the digest of one episode."""
    report_fd = os.dup(1)
    os.dup2(2, 1)  # what environments print goes where stderr goes
    spec = load_env(sys.argv[1])
    env = spec.make()
    digest = play(spec, env, int(sys.argv[2]), json.loads(sys.argv[3]))
    env.close()
    os.write(report_fd, digest.encode())


if __name__ == "__main__":
    main()
