"""From a response to something that may be said in the house."""

from __future__ import annotations

import random
import re

from envs.base import Observation
from envs.tags import parse_think_action as project

__all__ = ["ACTIONS", "project", "sample_action"]

ACTIONS = (
    "look around",
    "inventory",
    "look at X",
    "look in X",
    "read X",
    "open X",
    "close X",
    "activate X",
    "deactivate X",
    "go to X",
    "pick up X",
    "put down X",
    "move X to Y",
    "pour X in Y",
    "dunk X in Y",
    "mix X",
    "use X on Y",
    "connect X to Y",
    "disconnect X",
    "eat X",
    "flush X",
    "focus on X",
    "wait",
    "wait1",
)
"""What may be said, with names of things for X and Y. With the simplification ``teleportAction``
also ``teleport to X``."""
_THING = re.compile(r"^\s*(?:an?|the|A door to the) ([a-z ]+?)(?= \(|\.|,|$)", re.MULTILINE)


def sample_action(rng: random.Random, observation: Observation) -> str:
    """An action with things that the observation names, drawn with ``rng``; for random agents.

    The engine's own list of legal actions has some hundred entries and takes 0.2 s.
    """
    things = sorted(set(_THING.findall(observation.text)))
    if not things:
        return "look around"
    action = rng.choice(("go to X", "open X", "pick up X", "look at X", "look around"))
    return action.replace("X", rng.choice(things))
