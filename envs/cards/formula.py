"""Formulas over cards: which token may come next, what a formula is worth, and which are right.

A token is a number (``"1"`` to ``"10"``), an operator, a bracket, or ``=``, which ends the formula.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

Tokens = tuple[str, ...]

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
_FLOAT_ERROR = 1e-6
_Expression = tuple[Fraction, Tokens, int]
"""Value, tokens, and precedence of the last operation."""
_RANK_VALUES = {"A": 1, "J": 10, "Q": 10, "K": 10}


def card_value(rank: str) -> int:
    """1 for an ace, 10 for a picture, otherwise the number on the card."""
    return _RANK_VALUES.get(rank) or int(rank)


def next_tokens(tokens: Sequence[str], values: Sequence[int], operators: str) -> Tokens:
    """Tokens after which the formula can still be completed with the cards that are left.

    Args:
        tokens: the formula so far, without ``=``.
        values: of all cards of the hand; each may be used once.
        operators: those of this game; with ``(`` in it, brackets may be used.

    Example:
        >>> next_tokens((), (3, 9), "+*")
        ('3', '9')
        >>> next_tokens(("3",), (3, 9), "+*")
        ('+', '*', '=')
        >>> next_tokens(("3", "+", "9"), (3, 9), "+*")
        ('=',)
    """
    left = Counter(values) - Counter(int(token) for token in tokens if token.isdigit())
    num_open = tokens.count("(") - tokens.count(")")
    if not tokens or tokens[-1] in "+-*/(":
        numbers = tuple(str(value) for value in sorted(left))
        # A bracket around a single card says nothing, and there are never more open than cards.
        brackets = ("(",) if "(" in operators and left.total() > 1 else ()
        return numbers + (brackets if num_open < len(values) - 1 else ())
    closing = (")",) if num_open else ("=",)
    return (tuple(sign for sign in operators if sign in _PRECEDENCE) if left else ()) + closing


def evaluate(tokens: Sequence[str]) -> Fraction | None:
    """The exact value of a complete formula without ``=``; None where it divides by zero.

    Example:
        >>> evaluate(("(", "1", "+", "2", ")", "/", "4"))
        Fraction(3, 4)
    """
    numbers: list[Fraction] = []
    pending: list[str] = []

    def reduce_top() -> bool:
        right, left = numbers.pop(), numbers.pop()
        value = _apply(pending.pop(), left, right)
        if value is not None:
            numbers.append(value)
        return value is not None

    for token in (*tokens, ")"):
        if token.isdigit():
            numbers.append(Fraction(int(token)))
        elif token == "(":
            pending.append(token)
        else:
            least = _PRECEDENCE.get(token, 0)
            while pending and pending[-1] != "(" and _PRECEDENCE[pending[-1]] >= least:
                if not reduce_top():
                    return None
            if token == ")":
                if pending:
                    pending.pop()
            else:
                pending.append(token)
    return numbers[0]


@functools.lru_cache(maxsize=4096)
def is_solvable(values: tuple[int, ...], operators: str, target: int) -> bool:
    """Whether a formula uses each card once and is worth ``target``; every game has ``+`` and
    ``*``, and with more than two cards brackets.

    Computed in floats: with cards up to ten, a wrong value misses the target by more than their
    error.

    Example:
        >>> is_solvable((3, 3, 8, 8), "+-*/(", 24), is_solvable((1, 1, 1, 1), "+-*/(", 24)
        (True, False)
    """
    everything = (1 << len(values)) - 1
    # From a set of cards, as bits, to what they can be worth.
    worth: dict[int, set[float]] = {}
    for cards in range(1, everything + 1):
        if cards.bit_count() == 1:
            worth[cards] = {float(values[cards.bit_length() - 1])}
            continue
        found: set[float] = set()
        left = (cards - 1) & cards
        while left:
            for first, second in itertools.product(worth[left], worth[cards ^ left]):
                found.update((first + second, first * second))
                if "-" in operators:
                    found.add(first - second)
                if "/" in operators and abs(second) > _FLOAT_ERROR:
                    found.add(first / second)
            left = (left - 1) & cards
        worth[cards] = {round(value, 9) for value in found}
    return any(abs(value - target) < _FLOAT_ERROR for value in worth[everything])


@functools.lru_cache(maxsize=64)
def solutions(values: tuple[int, ...], operators: str, target: int) -> tuple[Tokens, ...]:
    """Every formula that uses each card once and is worth ``target``, shortest first, with no
    bracket that could be left out; ``=`` not included.

    Example:
        >>> solutions((3, 9), "+*", 12)
        (('3', '+', '9'), ('9', '+', '3'))
    """
    signs = "".join(sign for sign in operators if sign in _PRECEDENCE)
    known: dict[tuple[int, ...], list[_Expression]] = {}
    found = {
        tokens
        for order in set(itertools.permutations(values))
        for value, tokens, _ in _expressions(order, signs, known)
        if value == target and ("(" in operators or "(" not in tokens)
    }
    return tuple(sorted(found, key=lambda tokens: (len(tokens), tokens)))


def _expressions(
    order: tuple[int, ...], signs: str, known: dict[tuple[int, ...], list[_Expression]]
) -> list[_Expression]:
    """Each formula over cards in this order; ``known`` keeps those of parts."""
    if order not in known:
        known[order] = list(_combinations(order, signs, known))
    return known[order]


def _combinations(
    order: tuple[int, ...], signs: str, known: dict[tuple[int, ...], list[_Expression]]
) -> Iterator[_Expression]:
    if len(order) == 1:
        yield Fraction(order[0]), (str(order[0]),), 3
    for cut in range(1, len(order)):
        for left, right in itertools.product(
            _expressions(order[:cut], signs, known), _expressions(order[cut:], signs, known)
        ):
            for sign in signs:
                value = _apply(sign, left[0], right[0])
                if value is None:
                    continue
                level = _PRECEDENCE[sign]
                # a + (b + c) is the same formula as (a + b) + c, which the other cut gives; but
                # a - (b + c) and a / (b * c) need their brackets.
                left_tokens = left[1] if left[2] >= level else ("(", *left[1], ")")
                right_tokens = right[1] if right[2] > level else ("(", *right[1], ")")
                yield value, (*left_tokens, sign, *right_tokens), level


def _apply(sign: str, left: Fraction, right: Fraction) -> Fraction | None:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    return left / right if right else None
