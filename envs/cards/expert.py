"""Whoever knows the game: straight to the number, a right formula, basic strategy."""

from __future__ import annotations

from envs.base import TextEnv
from envs.cards.env import CardsEnv


def expert(env: TextEnv) -> list[str]:
    """Actions from the current state to the end of the hand.

    In blackjack only the next one, since the cards to come are unknown: ask again after each step.
    Empty when the hand is over, or when no right formula begins like the one that was written.

    Raises:
        TypeError: ``env`` is not a `CardsEnv`.
    """
    if not isinstance(env, CardsEnv):
        raise TypeError(f"the cards expert needs a CardsEnv, got {type(env).__name__}.")
    return [] if env.game.done else env.game.plan()
