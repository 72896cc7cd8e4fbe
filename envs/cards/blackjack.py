"""Blackjack against a dealer who draws to 17, from cards that never run out.

The order of the cards is part of the hand: whoever takes the same actions gets the same cards.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from envs.cards.formula import card_value
from envs.cards.games import Game, View
from envs.cards.points import RANKS

_DEALER_STANDS_AT = 17
_LIMIT = 21


def hand_value(ranks: Sequence[str]) -> tuple[int, bool]:
    """Value of a hand, and whether an ace in it counts eleven.

    Example:
        >>> hand_value(("A", "6")), hand_value(("A", "6", "K"))
        ((17, True), (17, False))
    """
    total = sum(map(card_value, ranks))
    soft = "A" in ranks and total + 10 <= _LIMIT
    return total + 10 * soft, soft


class Blackjack(Game):
    """1 for a win, 0 for a draw, -1 for a loss, at the end of the hand."""

    TASK = (
        "Blackjack: come closer to 21 than the dealer and not above it. The dealer draws to 17.\n"
        "hit takes a card, stand ends your turn. J, Q and K count 10, an ace 1 or 11."
    )
    INVALID_REWARD = 0.0

    def __init__(
        self, rng: random.Random, player: tuple[str, ...], dealer: tuple[str, ...]
    ) -> None:
        self._rng = rng
        self.player, self.dealer = player, dealer

    @classmethod
    def deal(cls, rng: random.Random, options: Mapping[str, Any]) -> Blackjack:
        """Two cards each, one of the dealer's face down."""
        ranks = [rng.choice(RANKS) for _ in range(4)]
        return cls(rng, (ranks[0], ranks[1]), (ranks[2], ranks[3]))

    @property
    def start_key(self) -> str:
        """Every card that is dealt and the first that could follow."""
        peek = random.Random(0)
        peek.setstate(self._rng.getstate())
        coming = [peek.choice(RANKS) for _ in range(8)]
        return " ".join((*sorted(self.player), "|", *self.dealer, "|", *coming))

    @property
    def anchor(self) -> str:
        """What matters to a player: value of the hand, usable ace, the dealer's open card."""
        value, soft = hand_value(self.player)
        shown = self.dealer if self.done else self.dealer[:1]
        return f"{value}{' soft' if soft else ''} against {' '.join(shown)}"

    def view(self) -> View:
        """Both hands; the dealer's second card stays hidden until the end."""
        hidden = self.dealer if self.done else (self.dealer[0], "?")
        value, soft = hand_value(self.player)
        return View(
            lines=(
                f"Dealer: {', '.join(hidden)}",
                f"You: {', '.join(self.player)} ({'soft ' if soft else ''}{value})",
            ),
            rows=(hidden, self.player),
        )

    def actions(self) -> tuple[str, ...]:
        """Always both."""
        return ("hit", "stand")

    def play(self, action: str) -> float:
        """A card for the player, or the dealer's turn and the reckoning."""
        if action == "hit":
            self.player += (self._rng.choice(RANKS),)
            self.done = hand_value(self.player)[0] > _LIMIT
            return -1.0 if self.done else 0.0
        while hand_value(self.dealer)[0] < _DEALER_STANDS_AT:
            self.dealer += (self._rng.choice(RANKS),)
        mine, theirs = hand_value(self.player)[0], hand_value(self.dealer)[0]
        self.done = True
        self.success = theirs > _LIMIT or mine > theirs
        return 1.0 if self.success else float((mine > theirs) - (mine < theirs))

    def plan(self) -> list[str]:
        """The next action of basic strategy; nobody can know the one after it."""
        value, soft = hand_value(self.player)
        shown = card_value(self.dealer[0])
        if soft:
            hit = value < 18 or (value == 18 and shown in (1, 9, 10))
        else:
            stands_at = 12 if shown in (4, 5, 6) else 13 if shown in (2, 3) else 17
            hit = value < stands_at
        return ["hit" if hit else "stand"]
