"""Four small card games as text, chosen by the option ``game``: after "gym_cards" of RL4VLM, in our
own words and code.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from envs.base import Observation, StepOutcome, TextEnv
from envs.cards.blackjack import Blackjack
from envs.cards.games import Game, NumberLine
from envs.cards.images import draw_image
from envs.cards.points import EZPoints, Points24
from envs.options import Option, is_int, one_of, resolve_options

NAME = "cards"
GAMES: Mapping[str, type[Game]] = {
    "number_line": NumberLine,
    "ez_points": EZPoints,
    "points24": Points24,
    "blackjack": Blackjack,
}

OPTION_RULES: Mapping[str, Option] = {
    "game": one_of(GAMES, default="number_line"),
    "max_number": Option(
        default=5,
        rule="an integer from 2 to 99 (largest number of number_line)",
        allows=lambda value: is_int(value) and 2 <= value <= 99,
    ),
    "image": Option(
        default=False, rule="true or false", allows=lambda value: isinstance(value, bool)
    ),
}


def start_key(seed: int, options: Mapping[str, Any]) -> str:
    """The hand that is dealt: two seeds with one hand are one task."""
    return _deal(seed, resolve_options(NAME, OPTION_RULES, options)).start_key


class CardsEnv(TextEnv):
    """A hand of the game that the options name.

    Example:
        >>> env = CardsEnv()
        >>> print(env.reset(seed=1).text)
        Target: 4
        Current: 1
        >>> env.step("+").reward
        0.0
    """

    def __init__(self) -> None:
        self._game: Game | None = None
        self._name = ""
        self._with_image = False

    @property
    def game(self) -> Game:
        """The hand that is played."""
        if self._game is None:
            raise RuntimeError("cards: no episode was started; call reset() first.")
        return self._game

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Deal the hand of ``seed``; raises ValueError for an option that cannot work."""
        resolved = resolve_options(NAME, OPTION_RULES, options)
        self._name, self._with_image = resolved["game"], resolved["image"]
        self._game = _deal(seed, resolved)
        return self._observe()

    def step(self, action: str) -> StepOutcome:
        """Play; an action that is not legal changes nothing and comes back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        game = self.game
        if game.done:
            raise RuntimeError("cards: the episode is over; call reset() before step().")
        action_valid = action in game.actions()
        reward = game.play(action) if action_valid else game.INVALID_REWARD
        return StepOutcome(
            observation=self._observe(),
            reward=reward,
            terminated=game.done,
            truncated=False,
            action_valid=action_valid,
            info={"success": game.success, "task_type": self._name},
        )

    def close(self) -> None:
        """Forget the hand; harmless when called twice."""
        self._game = None

    def _observe(self) -> Observation:
        game = self.game
        view = game.view()
        return Observation(
            text="\n".join(view.lines),
            anchor=game.anchor,
            admissible_actions=() if game.done else game.actions(),
            image=draw_image(view) if self._with_image else None,
            task=game.TASK,
        )


def _deal(seed: int, options: Mapping[str, Any]) -> Game:
    game = options["game"]
    return GAMES[game].deal(random.Random(f"cards/{game}/{seed}"), options)
