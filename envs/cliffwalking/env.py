"""CliffWalking as text: Gymnasium's CliffWalking-v1, from a start that the seed draws.

Rewards are Gymnasium's: -1 a step, -100 for a fall, after which one stands at the bottom left. Only
the goal ends the episode. Gymnasium itself always starts at the bottom left; with
``random_start=false`` so does this, and then there is one task only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv as GymCliff

from envs.base import Observation
from envs.gym_text import GymTextEnv
from envs.options import Option, resolve_options

NAME = "cliffwalking"
ACTIONS: tuple[str, ...] = ("up", "right", "down", "left")
"""In Gymnasium's order: the place in this tuple is Gymnasium's action number."""
MOVES: Mapping[str, tuple[int, int]] = {
    "up": (-1, 0),
    "right": (0, 1),
    "down": (1, 0),
    "left": (0, -1),
}
TASK = "Walk along the cliff to the goal without falling."
NUM_ROWS, NUM_COLUMNS = 4, 12
_GOAL = (NUM_ROWS - 1, NUM_COLUMNS - 1)

OPTION_RULES: Mapping[str, Option] = {
    "random_start": Option(
        default=True, rule="true or false", allows=lambda value: isinstance(value, bool)
    ),
    "is_slippery": Option(
        default=False, rule="true or false", allows=lambda value: isinstance(value, bool)
    ),
}


def draw_start(seed: int, options: Mapping[str, Any]) -> tuple[int, int]:
    """Row and column of the start: any cell that is neither cliff nor goal."""
    if not resolve_options(NAME, OPTION_RULES, options)["random_start"]:
        return NUM_ROWS - 1, 0
    places = [(row, column) for row in range(NUM_ROWS) for column in range(NUM_COLUMNS)]
    free = [place for place in places if place != _GOAL and cell(place) != "C"]
    return random.Random(seed).choice(free)


def start_key(seed: int, options: Mapping[str, Any]) -> str:
    """The start: two seeds that agree are one task."""
    return str(draw_start(seed, options))


def cell(place: tuple[int, int]) -> str:
    """Letter of a place: ``C`` cliff, ``G`` goal, ``.`` free, ``edge`` beyond the map."""
    row, column = place
    if not (0 <= row < NUM_ROWS and 0 <= column < NUM_COLUMNS):
        return "edge"
    if place == _GOAL:
        return "G"
    return "C" if row == NUM_ROWS - 1 and column > 0 else "."


class CliffWalkingEnv(GymTextEnv):
    """Reach G at the bottom right.

    Example:
        >>> env = CliffWalkingEnv()
        >>> print(env.reset(seed=0, options={"random_start": False}).text)
        . . . . . . . . . . . .
        . . . . . . . . . . . .
        . . . . . . . . . . . .
        P C C C C C C C C C C G
        Player: row 3 column 0
        Around: up ., right C, down edge, left edge
    """

    NAME, ACTIONS, OPTION_RULES = NAME, ACTIONS, OPTION_RULES

    @property
    def is_slippery(self) -> bool:
        """Whether a move goes astray to either side, each with probability 1/3."""
        return bool(self.options["is_slippery"])

    def make_gym(self, options: Mapping[str, Any]) -> GymCliff:
        """Gymnasium's class; the start is ours."""
        return GymCliff(is_slippery=options["is_slippery"])

    def start(self, seed: int, options: Mapping[str, Any]) -> None:
        """Reset, then stand where the seed says."""
        self.gym.reset(seed=seed)
        row, column = draw_start(seed, options)
        self.gym.s = row * NUM_COLUMNS + column

    def is_success(self, reward: float, terminated: bool) -> bool:
        """The goal is the only end."""
        return terminated

    def observe(self) -> Observation:
        """The map, the place, and what lies around it."""
        place = divmod(int(self.gym.s), NUM_COLUMNS)
        rows = [[cell((row, column)) for column in range(NUM_COLUMNS)] for row in range(NUM_ROWS)]
        rows[place[0]][place[1]] = "P"
        board = "\n".join(" ".join(row) for row in rows)
        around = ", ".join(
            f"{action} {cell((place[0] + rows_on, place[1] + columns_on))}"
            for action, (rows_on, columns_on) in MOVES.items()
        )
        lines = [board, f"Player: row {place[0]} column {place[1]}", f"Around: {around}"]
        if self.is_slippery:
            lines.insert(0, "The ground is slippery.")
        return Observation(
            text="\n".join(lines), anchor=board, admissible_actions=ACTIONS, task=TASK
        )
