"""What the card games have in common, and the simplest of them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What can be seen of a game: the same facts for the text and for the picture."""

    lines: tuple[str, ...]
    """``name: value`` lines of the text."""
    rows: tuple[tuple[str, ...], ...]
    """Rows of cards for the picture; a card shows up to two characters, ``?`` is face down."""
    caption: str = ""
    """A line of text in the picture."""


class Game(ABC):
    """One hand of one game. `envs.cards.env.CardsEnv` plays it."""

    TASK: str
    """The rules, for the prompt."""
    INVALID_REWARD: float = -1.0
    """What an illegal action costs."""

    done = False
    success = False

    @classmethod
    @abstractmethod
    def deal(cls, rng: random.Random, options: Mapping[str, Any]) -> Game:
        """Start a hand; ``rng`` belongs to the hand from here on."""

    @property
    @abstractmethod
    def start_key(self) -> str:
        """Equal for two hands that are one task; asked for right after dealing."""

    @property
    @abstractmethod
    def anchor(self) -> str:
        """The state, in canonical form."""

    @abstractmethod
    def view(self) -> View:
        """What the player sees."""

    @abstractmethod
    def actions(self) -> tuple[str, ...]:
        """Legal actions, while the hand is not over."""

    @abstractmethod
    def play(self, action: str) -> float:
        """Take a legal action and return its reward; sets ``done`` and ``success``."""

    @abstractmethod
    def plan(self) -> list[str]:
        """An expert's next actions."""


class NumberLine(Game):
    """Bring the current number to the target by ones: 1 for reaching it, -1 for a step away."""

    TASK = (
        "Number line: bring the current number to the target. + adds one, - takes one away.\n"
        "The numbers go from 0 to {max_number}."
    )

    def __init__(self, current: int, target: int, max_number: int) -> None:
        self.current, self.target, self.max_number = current, target, max_number
        self.TASK = type(self).TASK.format(max_number=max_number)

    @classmethod
    def deal(cls, rng: random.Random, options: Mapping[str, Any]) -> NumberLine:
        """Two different numbers."""
        current, target = rng.sample(range(options["max_number"] + 1), 2)
        return cls(current, target, options["max_number"])

    @property
    def start_key(self) -> str:
        """Both numbers."""
        return self.anchor

    @property
    def anchor(self) -> str:
        """Both numbers."""
        return f"{self.current}->{self.target}"

    def view(self) -> View:
        """Target above, current number below."""
        return View(
            lines=(f"Target: {self.target}", f"Current: {self.current}"),
            rows=((str(self.target),), (str(self.current),)),
        )

    def actions(self) -> tuple[str, ...]:
        """Always both; at an end of the line one of them goes nowhere."""
        return ("+", "-")

    def play(self, action: str) -> float:
        """1 at the target, 0 for a step towards it, -1 for any other."""
        before = abs(self.current - self.target)
        moved = self.current + (1 if action == "+" else -1)
        self.current = min(max(moved, 0), self.max_number)
        self.done = self.success = self.current == self.target
        if self.success:
            return 1.0
        return 0.0 if abs(self.current - self.target) < before else -1.0

    def plan(self) -> list[str]:
        """Straight to the target."""
        difference = self.target - self.current
        return ["+" if difference > 0 else "-"] * abs(difference)
