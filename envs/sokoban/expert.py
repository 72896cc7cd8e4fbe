"""A solver: the fewest moves from the current board, by A* over pushes, within a bounded search.

A node is the board right after a push. Its edges are the pushes that the player can walk to; an
edge costs the walk and the push. The estimate of what is left assigns each box a target of its own
and counts pushes as if nothing else were in the way, so it never overestimates and the first
solution found is the shortest. Boxes on cells from which no target can be reached end a branch.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import deque
from collections.abc import Mapping

from envs.base import TextEnv
from envs.sokoban.env import SokobanEnv
from envs.sokoban.levels import MOVES, Place, step_to, walk_distances

MAX_NODES = 4_000
"""Boards looked at before the search for the shortest solution is given up."""
_HURRY = 5
"""Weight of the estimate in the second search, which finds a longer solution sooner."""

Board = tuple[frozenset[Place], Place]


def expert(env: TextEnv) -> list[str]:
    """Moves from the current board to the solved one.

    The shortest when a search over `MAX_NODES` boards finds it, otherwise what a second, greedier
    search over as many finds. Empty when the level is solved, cannot be solved any more, or both
    searches gave up.

    Raises:
        TypeError: ``env`` is not a `SokobanEnv`.
    """
    if not isinstance(env, SokobanEnv):
        raise TypeError(f"the Sokoban expert needs a SokobanEnv, got {type(env).__name__}.")
    if env.done:
        return []
    level = env.level
    for weight in (1, _HURRY):
        plan = solve(level.floor, level.targets, env.boxes, env.player, weight=weight)
        if plan is not None:
            return plan
    return []


def solve(
    floor: frozenset[Place],
    targets: frozenset[Place],
    boxes: frozenset[Place],
    player: Place,
    *,
    weight: int = 1,
    max_nodes: int = MAX_NODES,
) -> list[str] | None:
    """Moves that bring every box onto a target.

    Args:
        weight: of the estimate; 1 gives a shortest solution, more a quicker search.
        max_nodes: boards to look at.

    Returns:
        Moves; empty where there is no way; None when ``max_nodes`` were not enough to tell.
    """
    estimate = _Estimate(floor, targets)
    start: Board = (boxes, player)
    costs: dict[Board, int] = {start: 0}
    came_from: dict[Board, tuple[Board, Place, str]] = {}
    ticket = itertools.count()
    queue = [(0, next(ticket), start)]
    closed: set[Board] = set()
    while queue:
        *_, board = heapq.heappop(queue)
        if board in closed:
            continue
        if board[0] == targets:
            return _moves(floor, came_from, board)
        if len(closed) == max_nodes:
            return None
        closed.add(board)
        for stand, action, distance in _pushes(floor, *board):
            box = step_to(stand, MOVES[action])
            pushed = (board[0] - {box} | {step_to(box, MOVES[action])}, box)
            cost = costs[board] + distance + 1
            left = estimate(pushed[0])
            if left is not None and cost < costs.get(pushed, cost + 1):
                costs[pushed] = cost
                came_from[pushed] = (board, stand, action)
                heapq.heappush(queue, (cost + weight * left, next(ticket), pushed))
    return []


def _pushes(
    floor: frozenset[Place], boxes: frozenset[Place], player: Place
) -> list[tuple[Place, str, int]]:
    """Every possible push: where to stand, which way to push, how far the walk is."""
    distances = walk_distances(floor, boxes, player)
    found = []
    for box in sorted(boxes):
        for action, move in MOVES.items():
            stand = (box[0] - move[0], box[1] - move[1])
            beyond = step_to(box, move)
            if stand in distances and beyond in floor and beyond not in boxes:
                found.append((stand, action, distances[stand]))
    return found


class _Estimate:
    """Fewest pushes that the boxes need when each is looked at alone; None where one is stuck."""

    def __init__(self, floor: frozenset[Place], targets: frozenset[Place]) -> None:
        self._pushes_to = [_push_distances(floor, target) for target in sorted(targets)]
        self._of_boxes = functools.cache(self._compute)

    def __call__(self, boxes: frozenset[Place]) -> int | None:
        return self._of_boxes(boxes)

    def _compute(self, boxes: frozenset[Place]) -> int | None:
        totals = []
        for order in itertools.permutations(boxes):
            pushes = [
                pushes_to.get(box) for pushes_to, box in zip(self._pushes_to, order, strict=True)
            ]
            known = [number for number in pushes if number is not None]
            if len(known) == len(pushes):
                totals.append(sum(known))
        return min(totals, default=None)


def _push_distances(floor: frozenset[Place], target: Place) -> Mapping[Place, int]:
    """Pushes that a lone box needs from each cell to ``target``: pulls counted from there."""
    distances = {target: 0}
    queue = deque([target])
    while queue:
        box = queue.popleft()
        for move in MOVES.values():
            before = step_to(box, move)
            stand = step_to(before, move)
            if before in floor and stand in floor and before not in distances:
                distances[before] = distances[box] + 1
                queue.append(before)
    return distances


def _moves(
    floor: frozenset[Place], came_from: Mapping[Board, tuple[Board, Place, str]], board: Board
) -> list[str]:
    """The pushes that led to ``board``, with the walks between them."""
    actions: list[str] = []
    while board in came_from:
        board, stand, push = came_from[board]
        actions = [*_walk(floor, board, stand), push, *actions]
    return actions


def _walk(floor: frozenset[Place], board: Board, goal: Place) -> list[str]:
    """A shortest walk of the player to ``goal``, found from its end."""
    boxes, player = board
    distances = walk_distances(floor, boxes, player)
    actions: list[str] = []
    while goal != player:
        for action, move in MOVES.items():
            before = (goal[0] - move[0], goal[1] - move[1])
            if distances.get(before) == distances[goal] - 1:
                actions.append(action)
                goal = before
                break
    return actions[::-1]
