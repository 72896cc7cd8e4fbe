"""The game's own solution as an expert."""

from __future__ import annotations

from envs.base import TextEnv
from envs.textworld_express.env import TextWorldExpressEnv


def expert(env: TextEnv) -> list[str]:
    """Actions from here to the end, as the game's generator knows them. Works from the start, and
    after looking at things on the way; empty after other detours, and at the end.

    Raises:
        TypeError: ``env`` is not a `TextWorldExpressEnv`.
    """
    if not isinstance(env, TextWorldExpressEnv):
        raise TypeError(
            f"the TextWorldExpress expert needs a TextWorldExpressEnv, got {type(env).__name__}."
        )
    return list(env.gold_path())
