"""The messages of OpenEnv's WebSocket, as its servers send them.

One connection to ``/ws`` is one session with an environment of its own. Every request has one
answer::

    {"type": "reset", "data": {"seed": 7}}
    {"type": "step", "data": {"message": "go left"}}
    -> {"type": "observation", "data": {"observation": {...}, "reward": 0.0, "done": false}}
    -> {"type": "error", "data": {"message": "...", "code": "VALIDATION_ERROR"}}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CAPACITY_REACHED = "CAPACITY_REACHED"
"""Code of an error: the server holds as many sessions as it may."""
VALIDATION_ERROR = "VALIDATION_ERROR"
"""Code of an error: the action does not fit the server's schema. The session goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a reset or a step led to."""

    observation: Mapping[str, Any]
    """Fields of the environment's own observation class, in its order."""
    reward: float
    """0 where the server gives none."""
    done: bool


class ServerError(Exception):
    """The server understood and says no.

    Args:
        code: e.g. `CAPACITY_REACHED`.
        message: the server's words.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


def read_answer(text: str) -> Answer:
    """The answer in a message.

    Raises:
        ServerError: it is an error message.
        ValueError: it is something else.

    Example:
        >>> read_answer('{"type": "observation", "data": {"observation": {"text": "a hall"}, '
        ...     '"reward": null, "done": false}}')
        Answer(observation={'text': 'a hall'}, reward=0.0, done=False)
    """
    message = json.loads(text)
    match message:
        case {"type": "error", "data": {"message": said, "code": code}}:
            raise ServerError(str(code), str(said))
        case {"type": "observation", "data": {"observation": dict() as observation, **rest}}:
            reward = 0.0 if rest.get("reward") is None else rest["reward"]
            if not isinstance(reward, int | float) or not math.isfinite(reward):
                raise ValueError(f"the reward is {reward!r}")
            return Answer(
                observation=observation, reward=float(reward), done=bool(rest.get("done"))
            )
        case _:
            raise ValueError("it is neither an observation nor an error")
