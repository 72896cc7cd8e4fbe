"""Sokoban as text: push every box onto a target.

A box can be pushed and never pulled, so a wrong push may make a level unsolvable; the episode then
goes on until the step limit of whoever runs it (``env.max_steps``). A move against a wall, or
against a box that cannot give way, is legal and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.base import Observation, StepOutcome, TextEnv
from envs.options import Option, is_int, resolve_options
from envs.sokoban.images import draw_image
from envs.sokoban.levels import MOVES, Level, Place, draw_level, step_to

NAME = "sokoban"
ACTIONS: tuple[str, ...] = tuple(MOVES)
"""up, down, left, right."""

STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0
"""What ``reward: classic`` pays: every step, a box that comes onto a target (and minus as much for
one that leaves), the solved board."""

OPTION_RULES: Mapping[str, Option] = {
    "size": Option(
        default=6,
        rule="an integer from 6 to 10 (rows and columns, walls included)",
        allows=lambda value: is_int(value) and 6 <= value <= 10,
    ),
    "num_boxes": Option(
        default=1,
        rule="an integer from 1 to 4",
        allows=lambda value: is_int(value) and 1 <= value <= 4,
    ),
    "num_pulls": Option(
        default=30,
        rule="an integer from 4 to 200 (how long the game is played backwards)",
        allows=lambda value: is_int(value) and 4 <= value <= 200,
    ),
    "reward": Option(
        default="classic",
        rule="'classic' (steps, boxes and the solved board count) or 'sparse' (1 when solved)",
        allows=lambda value: value in ("classic", "sparse"),
    ),
    "image": Option(
        default=False, rule="true or false", allows=lambda value: isinstance(value, bool)
    ),
}


def board_text(level: Level, boxes: frozenset[Place], player: Place) -> str:
    """The board in rows of letters: ``#`` wall, ``_`` floor, ``O`` target, ``X`` box, ``*`` box on
    a target, ``P`` player, ``S`` player on a target.
    """

    def letter(place: Place) -> str:
        if place not in level.floor:
            return "#"
        on_target = place in level.targets
        if place == player:
            return "S" if on_target else "P"
        if place in boxes:
            return "*" if on_target else "X"
        return "O" if on_target else "_"

    return "\n".join(
        " ".join(letter((row, column)) for column in range(level.size)) for row in range(level.size)
    )


def start_key(seed: int, options: Mapping[str, Any]) -> str:
    """The first board: two seeds with one board are one task."""
    level = _level(seed, resolve_options(NAME, OPTION_RULES, options))
    return board_text(level, level.boxes, level.player)


class SokobanEnv(TextEnv):
    """Push all boxes onto targets.

    Example:
        >>> env = SokobanEnv()
        >>> "P" in env.reset(seed=0).text
        True
        >>> env.step("up").terminated
        False
    """

    def __init__(self) -> None:
        self._level: Level | None = None
        self._boxes: frozenset[Place] = frozenset()
        self._player: Place = (0, 0)
        self._options: dict[str, Any] = {}
        self._done = True

    @property
    def level(self) -> Level:
        """The level as it was at the start."""
        if self._level is None:
            raise RuntimeError("sokoban: no episode was started; call reset() first.")
        return self._level

    @property
    def boxes(self) -> frozenset[Place]:
        """Where the boxes are now."""
        return self._boxes

    @property
    def player(self) -> Place:
        """Where the player is now."""
        return self._player

    @property
    def done(self) -> bool:
        """Whether the level is solved, or none was started."""
        return self._done

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start on the level of ``seed``; raises ValueError for an option that cannot work."""
        self._options = resolve_options(NAME, OPTION_RULES, options)
        self._level = _level(seed, self._options)
        self._boxes, self._player = self._level.boxes, self._level.player
        self._done = False
        return self._observe()

    def step(self, action: str) -> StepOutcome:
        """Move, pushing a box that is in the way and can give way.

        An action that is not one of `ACTIONS` changes nothing, costs as much as a step, and comes
        back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        level = self.level
        if self._done:
            raise RuntimeError("sokoban: the episode is over; call reset() before step().")
        if action not in ACTIONS:
            return self._outcome(num_gained=0, action_valid=False)
        num_before = len(self._boxes & level.targets)
        there = step_to(self._player, MOVES[action])
        beyond = step_to(there, MOVES[action])
        if there in self._boxes:
            if beyond in level.floor and beyond not in self._boxes:
                self._boxes = self._boxes - {there} | {beyond}
                self._player = there
        elif there in level.floor:
            self._player = there
        self._done = self._boxes == level.targets
        return self._outcome(num_gained=len(self._boxes & level.targets) - num_before)

    def close(self) -> None:
        """Forget the episode; harmless when called twice."""
        self._level, self._done = None, True

    def _outcome(self, *, num_gained: int, action_valid: bool = True) -> StepOutcome:
        if self._options["reward"] == "sparse":
            reward = float(self._done)
        else:
            reward = STEP_REWARD + BOX_REWARD * num_gained + SOLVED_REWARD * self._done
        return StepOutcome(
            observation=self._observe(),
            reward=reward,
            terminated=self._done,
            truncated=False,
            action_valid=action_valid,
            info={
                "success": self._done,
                "num_boxes_on_target": len(self._boxes & self.level.targets),
            },
        )

    def _observe(self) -> Observation:
        board = board_text(self.level, self._boxes, self._player)
        return Observation(
            text=board,
            anchor=board,
            admissible_actions=ACTIONS,
            image=draw_image(board) if self._options["image"] else None,
        )


def _level(seed: int, options: Mapping[str, Any]) -> Level:
    return draw_level(
        seed,
        size=options["size"],
        num_boxes=options["num_boxes"],
        num_pulls=options["num_pulls"],
    )
