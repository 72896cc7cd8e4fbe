"""What the player of a MiniGrid level sees, in words.

MiniGrid's view is a square in front of the player, who stands in the middle of its near edge and
looks away from it; each cell is three numbers (object, colour, state).
"""

from __future__ import annotations

from typing import Any

from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

_IDX_TO_STATE = {number: state for state, number in STATE_TO_IDX.items()}
_NOT_TOLD = ("unseen", "empty", "floor", "wall", "agent")


def describe_view(view: Any) -> str:
    """The objects in sight, nearest first, then how far the next wall or door is in front.

    Args:
        view: numbers of shape ``[columns, rows, 3]``, as MiniGrid's observation ``image``.
    """
    num_columns, num_rows = int(view.shape[0]), int(view.shape[1])
    middle, near_row = num_columns // 2, num_rows - 1
    seen = []
    for column in range(num_columns):
        for row in range(num_rows):
            kind = IDX_TO_OBJECT[int(view[column, row, 0])]
            if kind in _NOT_TOLD or (column, row) == (middle, near_row):
                continue
            ahead, aside = near_row - row, column - middle
            place = f"{_thing(view[column, row])} {_offset(ahead, aside)}"
            seen.append((ahead + abs(aside), aside, place))
    things = ", ".join(f"a {place}" for _, _, place in sorted(seen)) or "no object"
    return f"You see {things}.\n{_wall_line(view, middle, near_row)}"


def _thing(cell: Any) -> str:
    kind, colour = IDX_TO_OBJECT[int(cell[0])], IDX_TO_COLOR[int(cell[1])]
    if kind == "door":
        return f"{_IDX_TO_STATE[int(cell[2])]} {colour} door"
    return kind if kind in ("goal", "lava") else f"{colour} {kind}"


def _offset(ahead: int, aside: int) -> str:
    parts = []
    if ahead:
        parts.append(f"{ahead} ahead")
    if aside:
        parts.append(f"{abs(aside)} {'right' if aside > 0 else 'left'}")
    return " ".join(parts)


def _wall_line(view: Any, middle: int, near_row: int) -> str:
    for ahead in range(1, near_row + 1):
        kind = IDX_TO_OBJECT[int(view[middle, near_row - ahead, 0])]
        if kind == "wall":
            return f"The wall in front of you is {ahead} ahead."
    return "There is no wall in sight in front of you."
