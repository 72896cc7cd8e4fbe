"""Taxi as text: Gymnasium's Taxi-v4. Fetch the passenger, drive to the destination, let them out.

Rewards are Gymnasium's: -1 a step, -10 for picking up or dropping off where that is impossible, 20
for the delivery. Driving against a wall is legal and goes nowhere.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

from gymnasium.envs.toy_text.taxi import MAP
from gymnasium.envs.toy_text.taxi import TaxiEnv as GymTaxi

from envs.base import Observation
from envs.gym_text import GymTextEnv
from envs.options import Option, resolve_options

NAME = "taxi"
ACTIONS: tuple[str, ...] = ("south", "north", "east", "west", "pick up", "drop off")
"""In Gymnasium's order: the place in this tuple is Gymnasium's action number."""
PLACES: tuple[str, ...] = ("R", "G", "Y", "B")
"""Letters of the four stops, by Gymnasium's number; number 4 is the inside of the taxi."""
TASK = "Fetch the passenger with the taxi and let them out at the destination."

OPTION_RULES: Mapping[str, Option] = {
    "is_rainy": Option(
        default=False, rule="true or false", allows=lambda value: isinstance(value, bool)
    ),
    "fickle_passenger": Option(
        default=False, rule="true or false", allows=lambda value: isinstance(value, bool)
    ),
}


def start_key(seed: int, options: Mapping[str, Any]) -> str:
    """Where taxi and passenger start and where to go: two seeds that agree are one task."""
    resolve_options(NAME, OPTION_RULES, options)
    return _state_text(*_starts().decode(_starts().reset(seed=seed)[0]))


@functools.cache
def _starts() -> GymTaxi:
    # Building the rules takes milliseconds, and a task list asks for thousands of starts.
    return GymTaxi()


@functools.cache
def _rules(is_rainy: bool, fickle_passenger: bool) -> GymTaxi:
    return GymTaxi(is_rainy=is_rainy, fickle_passenger=fickle_passenger)


def _state_text(row: int, column: int, passenger: int, destination: int) -> str:
    where = f"at {PLACES[passenger]}" if passenger < len(PLACES) else "in the taxi"
    return (
        f"Taxi: row {row} column {column}\nPassenger: {where}\nDestination: {PLACES[destination]}"
    )


class TaxiEnv(GymTextEnv):
    """Drive over a 5x5 map with walls ``|``.

    Example:
        >>> env = TaxiEnv()
        >>> print(env.reset(seed=0).text)
        +---------+
        |R: | : :G|
        | : | : : |
        | : : : : |
        |T| : | : |
        |Y| : |B: |
        +---------+
        Taxi: row 3 column 0
        Passenger: at B
        Destination: Y
        Open ways: south, north
    """

    NAME, ACTIONS, OPTION_RULES = NAME, ACTIONS, OPTION_RULES

    @property
    def is_rainy(self) -> bool:
        """Whether the taxi may slide to either side, each with probability 0.1."""
        return bool(self.options["is_rainy"])

    @property
    def is_fickle(self) -> bool:
        """Whether the passenger may choose another destination on the way."""
        return bool(self.options["fickle_passenger"])

    def make_gym(self, options: Mapping[str, Any]) -> GymTaxi:
        """Gymnasium's class without its limit of 200 steps. All share one table of the rules, which
        takes most of a megabyte and nobody writes to.
        """
        return copy.copy(_rules(options["is_rainy"], options["fickle_passenger"]))

    def observe(self) -> Observation:
        """Map, places in words, and the ways that no wall closes."""
        row, column, passenger, destination = self.gym.decode(self.gym.s)
        cells = [list(line) for line in MAP]
        cells[row + 1][2 * column + 1] = "T"
        board = "\n".join("".join(line) for line in cells)
        state = _state_text(row, column, passenger, destination)
        ways = ", ".join(self._open_ways(row, column))
        return Observation(
            text=f"{board}\n{state}\nOpen ways: {ways}",
            anchor=state,
            admissible_actions=ACTIONS,
            task=TASK,
        )

    def _open_ways(self, row: int, column: int) -> list[str]:
        line = MAP[row + 1]
        is_open = (row < 4, row > 0, line[2 * column + 2] == ":", line[2 * column] == ":")
        return [way for way, is_free in zip(ACTIONS[:4], is_open, strict=True) if is_free]
