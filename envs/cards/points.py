"""EZPoints and Points24: write a formula, token by token, that uses each card once and is worth the
target.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from envs.cards.formula import card_value, evaluate, is_solvable, next_tokens, solutions
from envs.cards.games import Game, View

RANKS: tuple[str, ...] = ("A", *map(str, range(2, 11)), "J", "Q", "K")


class _Points(Game):
    """10 for a right formula, -1 for a wrong one or an illegal token, otherwise 0."""

    NUM_CARDS: ClassVar[int]
    TARGET: ClassVar[int]
    OPERATORS: ClassVar[str]

    def __init__(self, ranks: tuple[str, ...]) -> None:
        self.ranks = ranks
        self.values = tuple(map(card_value, ranks))
        self.tokens: tuple[str, ...] = ()

    @classmethod
    def deal(cls, rng: random.Random, options: Mapping[str, Any]) -> _Points:
        """Draw hands until one has a solution."""
        while True:
            game = cls(tuple(rng.choice(RANKS) for _ in range(cls.NUM_CARDS)))
            if is_solvable(tuple(sorted(game.values)), cls.OPERATORS, cls.TARGET):
                return game

    @property
    def start_key(self) -> str:
        """The hand in any order: it is the same task."""
        return " ".join(sorted(self.ranks))

    @property
    def anchor(self) -> str:
        """Cards and formula."""
        return f"{' '.join(self.ranks)}|{' '.join(self.tokens)}"

    def view(self) -> View:
        """The cards, and the formula below."""
        formula = "".join(self.tokens)
        return View(
            lines=(f"Cards: {', '.join(self.ranks)}", f"Formula: {formula or 'empty'}"),
            rows=(self.ranks,),
            caption=formula,
        )

    def actions(self) -> tuple[str, ...]:
        """Tokens after which the formula can still be completed."""
        return next_tokens(self.tokens, self.values, self.OPERATORS)

    def play(self, action: str) -> float:
        """Write a token; ``=`` ends the hand."""
        if action != "=":
            self.tokens += (action,)
            return 0.0
        used = sorted(int(token) for token in self.tokens if token.isdigit())
        self.done = True
        self.success = used == sorted(self.values) and evaluate(self.tokens) == self.TARGET
        return 10.0 if self.success else -1.0

    def plan(self) -> list[str]:
        """The rest of a right formula; empty when none begins like this one."""
        num_written = len(self.tokens)
        for formula in self.solutions():
            if formula[:num_written] == self.tokens:
                return [*formula[num_written:], "="]
        return []

    def solutions(self) -> tuple[tuple[str, ...], ...]:
        """Right formulas of this hand."""
        return solutions(tuple(sorted(self.values)), self.OPERATORS, self.TARGET)


class EZPoints(_Points):
    """Two cards, target 12, addition and multiplication."""

    NUM_CARDS, TARGET, OPERATORS = 2, 12, "+*"
    TASK = (
        "EZPoints: write a formula worth 12 that uses each card once, one token at a time, and "
        "end it with =.\n"
        "A counts 1, and J, Q and K count 10. You may use + and *."
    )


class Points24(_Points):
    """Four cards, target 24, the four operations and brackets."""

    NUM_CARDS, TARGET, OPERATORS = 4, 24, "+-*/("
    TASK = (
        "Points24: write a formula worth 24 that uses each card once, one token at a time, and "
        "end it with =.\n"
        "A counts 1, and J, Q and K count 10. You may use + - * / and brackets."
    )
