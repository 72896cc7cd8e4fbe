"""The game's own walkthrough as an expert."""

from __future__ import annotations

from envs.alfworld.env import AlfworldEnv
from envs.base import TextEnv


def expert(env: TextEnv) -> list[str]:
    """Commands from the current state to the goal, by the walkthrough in the game file.

    Works from the start and wherever walking, looking and opening things has led; empty after other
    detours (see `envs.alfworld.walkthrough`), at the end, and for a game without a walkthrough.

    Raises:
        TypeError: ``env`` is not an `AlfworldEnv`.
    """
    if not isinstance(env, AlfworldEnv):
        raise TypeError(f"the ALFWorld expert needs an AlfworldEnv, got {type(env).__name__}.")
    return [] if env.done else env.guide.plan(env.admissible_actions)
