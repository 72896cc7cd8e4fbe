"""Blackjack as text: Gymnasium's Blackjack-v1, cards drawn with replacement from the seed.

Rewards are Gymnasium's: 1 won, 0 drawn, -1 lost, at the end. Success is a won game; the best player
wins about 43 of 100.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from gymnasium.envs.toy_text.blackjack import BlackjackEnv as GymBlackjack
from gymnasium.envs.toy_text.blackjack import sum_hand, usable_ace

from envs.base import Observation
from envs.gym_text import GymTextEnv
from envs.options import Option, resolve_options

NAME = "blackjack"
ACTIONS: tuple[str, ...] = ("stick", "hit")
"""In Gymnasium's order: the place in this tuple is Gymnasium's action number."""
TASK = "Come closer to 21 than the dealer, and not above it."

OPTION_RULES: Mapping[str, Option] = {
    "sab": Option(default=True, rule="true or false", allows=lambda value: isinstance(value, bool)),
    "natural": Option(
        default=False, rule="true or false", allows=lambda value: isinstance(value, bool)
    ),
}


def start_key(seed: int, options: Mapping[str, Any]) -> str:
    """What is known at the start (own total, dealer's card, usable ace), whatever is drawn later:
    no situation of training is evaluated on.
    """
    resolve_options(NAME, OPTION_RULES, options)
    return str(_dealer().reset(seed=seed)[0])


@functools.cache
def _dealer() -> GymBlackjack:
    return GymBlackjack()


class BlackjackEnv(GymTextEnv):
    """Hit or stick against a dealer who draws to 17.

    Example:
        >>> env = BlackjackEnv()
        >>> print(env.reset(seed=0).text)
        Your cards: 7, 4
        Your total: 11
        The dealer shows: 10
    """

    NAME, ACTIONS, OPTION_RULES = NAME, ACTIONS, OPTION_RULES

    def make_gym(self, options: Mapping[str, Any]) -> GymBlackjack:
        """Gymnasium's class."""
        return GymBlackjack(**options)

    @property
    def hand(self) -> tuple[int, bool]:
        """Total of the player, and whether an ace counts 11 in it."""
        return int(sum_hand(self.gym.player)), bool(usable_ace(self.gym.player))

    @property
    def dealer_card(self) -> int:
        """The dealer's open card, 1 for an ace."""
        return int(self.gym.dealer[0])

    def observe(self) -> Observation:
        """Own cards and the dealer's open one; all of the dealer's when the game is over."""
        total, has_ace = self.hand
        ace = " (the ace counts 11)" if has_ace else ""
        shown = self.gym.dealer if self.done else self.gym.dealer[:1]
        verb = "has" if self.done else "shows"
        return Observation(
            text=(
                f"Your cards: {_cards(self.gym.player)}\n"
                f"Your total: {total}{ace}\n"
                f"The dealer {verb}: {_cards(shown)}"
            ),
            anchor=f"{total}{ace}, dealer {_cards(shown)}",
            admissible_actions=ACTIONS,
            task=TASK,
        )


def _cards(cards: list[Any]) -> str:
    return ", ".join("ace" if card == 1 else str(int(card)) for card in cards)
