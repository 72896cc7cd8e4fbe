"""The task's own solution as an expert."""

from __future__ import annotations

from envs.base import TextEnv
from envs.scienceworld.env import ScienceWorldEnv


def expert(env: TextEnv) -> list[str]:
    """Actions from here to the end, as ScienceWorld knows them. Works from the start, and after
    looking at things on the way; empty after other detours, and at the end.

    Raises:
        TypeError: ``env`` is not a `ScienceWorldEnv`.
    """
    if not isinstance(env, ScienceWorldEnv):
        raise TypeError(
            f"the ScienceWorld expert needs a ScienceWorldEnv, got {type(env).__name__}."
        )
    return list(env.gold_path())
