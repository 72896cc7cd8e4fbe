"""FrozenLake as text: Gymnasium's FrozenLake-v1 on a random map drawn from the seed.

The step limit is the episode runner's (``env.max_steps``); this environment ends only at the goal
or in a hole. Walking against the border is legal and leaves the player where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as GymFrozenLake
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from envs.base import Observation, StepOutcome, TextEnv
from envs.options import Option, is_int, is_number, resolve_options

NAME = "frozenlake"
ACTIONS: tuple[str, ...] = ("left", "down", "right", "up")
"""In Gymnasium's order: the place in this tuple is Gymnasium's action number."""

OPTION_RULES: Mapping[str, Option] = {
    "size": Option(
        default=4,
        rule="an integer from 4 to 8",
        allows=lambda value: is_int(value) and 4 <= value <= 8,
    ),
    "is_slippery": Option(
        default=False, rule="true or false", allows=lambda value: isinstance(value, bool)
    ),
    # Below 0.5 nearly no random 8x8 map has a path to the goal, and drawing one would take for
    # ever.
    "p": Option(
        default=0.8,
        rule="a number from 0.5 to 1 (share of ice)",
        allows=lambda value: is_number(value) and 0.5 <= value <= 1,
    ),
}


def draw_map(seed: int, options: Mapping[str, Any]) -> list[str]:
    """Rows of letters ``S F H G``; equal arguments give equal maps, and a path to the goal
    exists.
    """
    return generate_random_map(size=options["size"], p=float(options["p"]), seed=seed)


def start_key(seed: int, options: Mapping[str, Any]) -> str:
    """The map as one text: two seeds with one map are one task."""
    return "/".join(draw_map(seed, resolve_options(NAME, OPTION_RULES, options)))


class FrozenLakeEnv(TextEnv):
    """Reach the goal without falling into a hole: reward 1 at the goal, otherwise 0.

    Example:
        >>> env = FrozenLakeEnv()
        >>> print(env.reset(seed=0).text)
        P F F F
        H H F F
        F H H F
        H F F G
        Player: row 0 column 0
    """

    def __init__(self) -> None:
        self._gym: GymFrozenLake | None = None
        self._rows: list[str] = []
        self._is_slippery = False
        self._done = True

    @property
    def map_rows(self) -> tuple[str, ...]:
        """Rows of the map, letters ``S F H G``, without the player."""
        return tuple(self._rows)

    @property
    def position(self) -> tuple[int, int]:
        """Row and column of the player, from the top left."""
        row, column = divmod(int(self._running_gym().s), len(self._rows[0]))
        return row, column

    @property
    def is_slippery(self) -> bool:
        """Whether a move goes astray to either side, each with probability 1/3."""
        return self._is_slippery

    @property
    def done(self) -> bool:
        """Whether the episode is over (goal or hole), or none was started."""
        return self._done

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start on the map of ``seed``; raises ValueError for an option that cannot work."""
        resolved = resolve_options(NAME, OPTION_RULES, options)
        self.close()
        self._rows = draw_map(seed, resolved)
        self._is_slippery = resolved["is_slippery"]
        # The class itself, not gymnasium.make: the registered wrappers would add a step limit of
        # 100.
        self._gym = GymFrozenLake(desc=self._rows, is_slippery=self._is_slippery)
        self._gym.reset(seed=seed)
        self._done = False
        return self._observe()

    def step(self, action: str) -> StepOutcome:
        """Move; an action that is not one of `ACTIONS` changes nothing and comes back as not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
        """
        gym = self._running_gym()
        if self._done:
            raise RuntimeError("frozenlake: the episode is over; call reset() before step().")
        if action not in ACTIONS:
            return StepOutcome(
                observation=self._observe(),
                reward=0.0,
                terminated=False,
                truncated=False,
                action_valid=False,
                info={"success": False},
            )
        _, reward, terminated, _, _ = gym.step(ACTIONS.index(action))
        self._done = bool(terminated)
        return StepOutcome(
            observation=self._observe(),
            reward=float(reward),
            terminated=self._done,
            truncated=False,
            info={"success": self._cell() == "G"},
        )

    def close(self) -> None:
        """Free the Gymnasium environment; harmless when called twice."""
        if self._gym is not None:
            self._gym.close()
        self._gym, self._done = None, True

    def _running_gym(self) -> GymFrozenLake:
        if self._gym is None:
            raise RuntimeError("frozenlake: no episode was started; call reset() first.")
        return self._gym

    def _cell(self) -> str:
        row, column = self.position
        return self._rows[row][column]

    def _observe(self) -> Observation:
        row, column = self.position
        cells = [list(line.replace("S", "F")) for line in self._rows]
        cells[row][column] = "P"
        board = "\n".join(" ".join(line) for line in cells)
        lines = [board, f"Player: row {row} column {column}"]
        if self._is_slippery:
            lines.insert(0, "The ice is slippery.")
        return Observation(text="\n".join(lines), anchor=board, admissible_actions=ACTIONS)
