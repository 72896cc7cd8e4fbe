"""Basic strategy, computed: the expected gain of sticking and of hitting, cards being drawn with
replacement. Wins that a natural decides are left out; they change no decision.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from envs.base import TextEnv
from envs.blackjack.env import BlackjackEnv

_CHANCES: Mapping[int, float] = {card: 4 / 13 if card == 10 else 1 / 13 for card in range(1, 11)}
_DEALER_STANDS = 17


def expert(env: TextEnv) -> list[str]:
    """The better of both actions; empty when the game is over.

    Raises:
        TypeError: ``env`` is not a `BlackjackEnv`.
    """
    if not isinstance(env, BlackjackEnv):
        raise TypeError(f"the blackjack expert needs a BlackjackEnv, got {type(env).__name__}.")
    if env.done:
        return []
    total, has_ace = env.hand
    better = _hit(total, has_ace, env.dealer_card) > _stick(total, env.dealer_card)
    return ["hit" if better else "stick"]


def _draw(total: int, has_ace: bool, card: int) -> tuple[int, bool]:
    """Total and usable ace after one more card."""
    total += card
    if card == 1 and total + 10 <= 21:
        total, has_ace = total + 10, True
    if total > 21 and has_ace:
        total, has_ace = total - 10, False
    return total, has_ace


@functools.cache
def _hit(total: int, has_ace: bool, dealer_card: int) -> float:
    gain = 0.0
    for card, chance in _CHANCES.items():
        then, ace = _draw(total, has_ace, card)
        if then > 21:
            gain -= chance
        else:
            gain += chance * max(_stick(then, dealer_card), _hit(then, ace, dealer_card))
    return gain


@functools.cache
def _stick(total: int, dealer_card: int) -> float:
    start = _draw(0, False, dealer_card)
    return sum(
        chance * (1 if end > 21 or end < total else 0 if end == total else -1)
        for end, chance in _dealer_ends(*start).items()
    )


@functools.cache
def _dealer_ends(total: int, has_ace: bool) -> Mapping[int, float]:
    """Chance of each final total of the dealer."""
    if total >= _DEALER_STANDS:
        return {total: 1.0}
    ends: dict[int, float] = {}
    for card, chance in _CHANCES.items():
        for end, then in _dealer_ends(*_draw(total, has_ace, card)).items():
            ends[end] = ends.get(end, 0.0) + chance * then
    return ends
