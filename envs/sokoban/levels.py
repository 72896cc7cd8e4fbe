"""Sokoban levels drawn from a seed, solvable by construction.

A room is carved by a random walk, the boxes are put on their targets, and the game is then played
backwards: the player pulls. Every pull, turned around, is a push, so a way back to the solved board
exists. Only `random.Random` objects of our own are used, seeded with a text; neither the global
random state nor Python's salted ``hash`` has a say.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

Place = tuple[int, int]
"""Row and column from the top left; the outer rim is wall."""

MOVES: Mapping[str, Place] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_MAX_TRIES = 2000
_OPEN_ROOM_AFTER = 200
"""Tries after which the room is not carved but open: crowded options then still find a level."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A board to start from."""

    size: int
    """Rows and columns, the rim of walls included."""
    floor: frozenset[Place]
    targets: frozenset[Place]
    boxes: frozenset[Place]
    player: Place


def draw_level(seed: int, *, size: int, num_boxes: int, num_pulls: int) -> Level:
    """The level of ``seed``: equal arguments give equal levels, in any process.

    Args:
        seed: any integer.
        size: rows and columns, the rim of walls included.
        num_boxes: boxes, and as many targets; no box starts on a target.
        num_pulls: how long the game is played backwards; more pulls make harder levels.

    Raises:
        RuntimeError: the room is too small for so many boxes (does not happen with the values that
            the environment's options allow).
    """
    rng = random.Random(f"sokoban/{seed}")
    for attempt in range(_MAX_TRIES):
        share = rng.uniform(0.55, 0.9) if attempt < _OPEN_ROOM_AFTER else 1.0
        floor = _carve(rng, size, share)
        if len(floor) < 2 * num_boxes + 1:
            continue
        *solved, player = rng.sample(sorted(floor), num_boxes + 1)
        start = _play_backwards(rng, floor, frozenset(solved), player, num_pulls)
        if start is not None:
            boxes, player = start
            return Level(
                size=size, floor=floor, targets=frozenset(solved), boxes=boxes, player=player
            )
    raise RuntimeError(
        f"no sokoban level with size {size} and {num_boxes} boxes was found; use fewer boxes."
    )


def step_to(place: Place, move: Place) -> Place:
    """The neighbour of ``place`` in the direction ``move``."""
    return place[0] + move[0], place[1] + move[1]


def walk_distances(
    floor: Collection[Place], boxes: Collection[Place], start: Place
) -> dict[Place, int]:
    """Moves to every cell that can be reached without pushing, nearest first.

    Example:
        >>> walk_distances({(1, 1), (1, 2), (1, 3)}, {(1, 3)}, (1, 1))
        {(1, 1): 0, (1, 2): 1}
    """
    distances = {start: 0}
    queue = deque([start])
    while queue:
        place = queue.popleft()
        for move in MOVES.values():
            there = step_to(place, move)
            if there in floor and there not in boxes and there not in distances:
                distances[there] = distances[place] + 1
                queue.append(there)
    return distances


def _carve(rng: random.Random, size: int, share: float) -> frozenset[Place]:
    """Connected floor that covers about ``share`` of the inside."""
    inside = size - 2
    num_cells = round(share * inside * inside)
    place = (rng.randint(1, inside), rng.randint(1, inside))
    floor = {place}
    while len(floor) < num_cells:
        row, column = step_to(place, rng.choice(tuple(MOVES.values())))
        if 1 <= row <= inside and 1 <= column <= inside:
            place = (row, column)
            floor.add(place)
    return frozenset(floor)


def _play_backwards(
    rng: random.Random,
    floor: frozenset[Place],
    solved: frozenset[Place],
    player: Place,
    num_pulls: int,
) -> tuple[frozenset[Place], Place] | None:
    """Boxes and player after random pulls: of the states without a box on a target, the one whose
    boxes are farthest from theirs, the latest one; None where there is no such state.
    """
    boxes, found, farthest, seen = solved, None, 0, set()
    for _ in range(num_pulls):
        seen.add((boxes, player))
        reachable = walk_distances(floor, boxes, player)
        pulls = []
        for box in sorted(boxes):
            for move in MOVES.values():
                stand = step_to(box, move)
                back = step_to(stand, move)
                if stand not in reachable or back not in floor or back in boxes:
                    continue
                pulled = (boxes - {box} | {stand}, back)
                if pulled not in seen:
                    pulls.append(pulled)
        if not pulls:
            break
        boxes, player = rng.choice(pulls)
        distance = sum(_distance_to_nearest(box, solved) for box in boxes)
        if not boxes & solved and distance >= farthest:
            found, farthest = (boxes, player), distance
    if found is None:
        return None
    # Not beside the box that was pulled last: walking anywhere within reach keeps the way back.
    boxes, player = found
    return boxes, rng.choice(sorted(walk_distances(floor, boxes, player)))


def _distance_to_nearest(box: Place, targets: Collection[Place]) -> int:
    return min(abs(box[0] - row) + abs(box[1] - column) for row, column in targets)
