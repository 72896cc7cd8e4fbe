"""TextWorld's own planner as an expert."""

from __future__ import annotations

from envs.base import TextEnv
from envs.textworld.env import TextWorldEnv


def expert(env: TextEnv) -> list[str]:
    """Commands that win from the current state, wherever it is; empty when nothing does any more
    (a burnt dish), and at the end.

    Raises:
        TypeError: ``env`` is not a `TextWorldEnv`.
    """
    if not isinstance(env, TextWorldEnv):
        raise TypeError(f"the TextWorld expert needs a TextWorldEnv, got {type(env).__name__}.")
    return list(env.solution)
