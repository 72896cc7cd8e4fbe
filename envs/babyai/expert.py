"""BabyAI's own bot, which solves nearly every BabyAI level (not MiniGrid's other levels)."""

from __future__ import annotations

from envs.babyai.env import BabyAIEnv
from envs.base import TextEnv


def expert(env: TextEnv) -> list[str]:
    """The bot's next action: it plans with what it has seen, so ask again after each step. Empty
    when the episode is over, or when the bot knows no way.

    Raises:
        TypeError: ``env`` is not a `BabyAIEnv`.
    """
    if not isinstance(env, BabyAIEnv):
        raise TypeError(f"the BabyAI bot needs a BabyAIEnv, got {type(env).__name__}.")
    advice = env.advice()
    return [advice] if advice is not None else []
