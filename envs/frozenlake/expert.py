"""A player that knows the map: shortest paths on firm ice, value iteration on slippery ice."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from envs.base import TextEnv
from envs.frozenlake.env import ACTIONS, FrozenLakeEnv

Place = tuple[int, int]

MOVES: Mapping[str, Place] = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
_DISCOUNT = 0.999
_MAX_SWEEPS = 5000


def expert(env: TextEnv) -> list[str]:
    """What to do from the current state.

    On firm ice: the shortest plan to the goal, whole. On slippery ice no plan holds, so the list
    has one action, the one most likely to reach the goal in the end: ask again after each step.
    Empty when the episode is over.

    Raises:
        TypeError: ``env`` is not a `FrozenLakeEnv`.
    """
    if not isinstance(env, FrozenLakeEnv):
        raise TypeError(f"the FrozenLake expert needs a FrozenLakeEnv, got {type(env).__name__}.")
    if env.done:
        return []
    if env.is_slippery:
        return [slippery_policy(env.map_rows)[env.position]]
    return shortest_path(env.map_rows, env.position)


def shortest_path(map_rows: Sequence[str], start: Place) -> list[str]:
    """Fewest moves from ``start`` to the goal around the holes; empty when there is no way.

    Example:
        >>> shortest_path(["SF", "HG"], (0, 0))
        ['right', 'down']
    """
    came_from: dict[Place, tuple[Place, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        place = queue.popleft()
        if _cell(map_rows, place) == "G":
            return _walk_back(came_from, place)
        for action in ACTIONS:
            there = _move(map_rows, place, action)
            if there not in came_from and _cell(map_rows, there) != "H":
                came_from[there] = (place, action)
                queue.append(there)
    return []


@functools.lru_cache(maxsize=1024)
def slippery_policy(map_rows: tuple[str, ...]) -> Mapping[Place, str]:
    """Best action at every cell when a move goes straight or to either side with 1/3 each.

    Maximises the chance of ever reaching the goal, by value iteration. The discount, close to 1,
    breaks ties in favour of progress: without it a player may shuffle safely for ever.
    """
    num_rows, num_columns = len(map_rows), len(map_rows[0])
    places = [(row, column) for row in range(num_rows) for column in range(num_columns)]
    number_of = {place: number for number, place in enumerate(places)}
    # reached[cell, action, turn]: the cell one lands on; ACTIONS is a circle, so neighbours are the
    # sides.
    reached = np.array(
        [
            [
                [
                    number_of[_move(map_rows, place, ACTIONS[(straight + turn) % 4])]
                    for turn in (-1, 0, 1)
                ]
                for straight in range(4)
            ]
            for place in places
        ]
    )
    is_ice = np.array([_cell(map_rows, place) in "SF" for place in places])
    values = np.array([float(_cell(map_rows, place) == "G") for place in places])
    for _ in range(_MAX_SWEEPS):
        updated = np.where(is_ice, _DISCOUNT * values[reached].mean(axis=2).max(axis=1), values)
        converged = np.abs(updated - values).max() < 1e-9
        values = updated
        if converged:
            break
    best = values[reached].mean(axis=2).argmax(axis=1)
    return {place: ACTIONS[best[number_of[place]]] for place in places}


def _walk_back(came_from: Mapping[Place, tuple[Place, str] | None], place: Place) -> list[str]:
    actions: list[str] = []
    step = came_from[place]
    while step is not None:
        place, action = step
        actions.append(action)
        step = came_from[place]
    return actions[::-1]


def _move(map_rows: Sequence[str], place: Place, action: str) -> Place:
    row, column = place[0] + MOVES[action][0], place[1] + MOVES[action][1]
    return min(max(row, 0), len(map_rows) - 1), min(max(column, 0), len(map_rows[0]) - 1)


def _cell(map_rows: Sequence[str], place: Place) -> str:
    return map_rows[place[0]][place[1]]
