"""Random walks of one start, and what in them is probably a mistake of the environment.

Nothing here is certain, so all of it is for warnings: a text may hide a part of the state, and a
game may last equally long by its own rules.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.playback import anchor_key, any_action, ended
from envs.spec import EnvSpec

_NUM_LONG_WALKS = 16
_LONG_STEPS = 300
_LONG_S = 3.0
"""Time for all long walks: a slow environment is looked at less far."""
_MIN_RETURNS = 3
"""Returns to a text before their anchors are judged."""
_MIN_LIMIT = 5
"""Steps below which equal lengths of episodes mean nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """One random walk from a reset."""

    texts: tuple[str, ...]
    """What was seen after each step."""
    anchors: tuple[str, ...]
    """The state after each step, as a key."""
    terminated: bool
    truncated: bool
    success: bool


def long_walks(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> list[Walk]:
    """A few walks that are long enough to meet the limit that an environment may have; those that
    the time allowed to go on.
    """
    until_s = time.perf_counter() + _LONG_S
    env, walks = spec.make(), []
    for number in range(_NUM_LONG_WALKS):
        rng = random.Random(f"walk {number}")
        observation = env.reset(seed=seed, options=options)
        texts, anchors = [], []
        for _ in range(_LONG_STEPS):
            outcome = env.step(any_action(spec, rng, observation))
            observation = outcome.observation
            texts.append(observation.text)
            anchors.append(repr(anchor_key(observation.anchor)))
            if ended(outcome) or time.perf_counter() > until_s:
                break
        walks.append(
            Walk(
                texts=tuple(texts),
                anchors=tuple(anchors),
                terminated=bool(outcome.terminated),
                truncated=bool(outcome.truncated),
                success=outcome.info["success"],
            )
        )
        if time.perf_counter() > until_s:
            break
    env.close()
    return walks


def remarks(walks: Sequence[Walk]) -> list[str]:
    """What is probably a mistake, in sentences."""
    found = []
    num_returns, num_equal = returns(walks)
    if num_returns >= _MIN_RETURNS and not num_equal:
        found.append(
            f"{num_returns} times a random walk came back to a text that it had seen, and never to "
            f"the anchor of then. A move counter does not belong into an anchor: states would "
            f"never repeat within an episode."
        )
    if any(walk.truncated and walk.success for walk in walks):
        found.append(
            "an episode was truncated and is a success. Unless lasting that long is the goal, "
            "report a goal that is reached as terminated; truncated is a cut from outside."
        )
    lengths = {len(walk.texts) for walk in walks}
    are_alike = len(walks) == _NUM_LONG_WALKS and len(lengths) == 1 and min(lengths) >= _MIN_LIMIT
    if are_alike and all(walk.terminated and not walk.success for walk in walks):
        found.append(
            f"all {len(walks)} random walks were terminated without success after exactly "
            f"{min(lengths)} steps. If that is a limit of steps, report it as truncated."
        )
    return found


def returns(walks: Sequence[Walk]) -> tuple[int, int]:
    """How often a walk saw an earlier text again with another in between, and in how many of these
    it had the anchor of an earlier time.

    Example:
        >>> walk = Walk(texts=("hall", "attic", "hall"), anchors=("1", "2", "3"),
        ...     terminated=False, truncated=False, success=False)
        >>> returns([walk])
        (1, 0)
    """
    num_returns = num_equal = 0
    for walk in walks:
        anchors_of: dict[str, set[str]] = {}
        for at, (text, anchor) in enumerate(zip(walk.texts, walk.anchors, strict=True)):
            if text in anchors_of and text != walk.texts[at - 1]:
                num_returns += 1
                num_equal += anchor in anchors_of[text]
            anchors_of.setdefault(text, set()).add(anchor)
    return num_returns, num_equal
