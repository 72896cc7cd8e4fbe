"""The board as an RGB picture, drawn with numpy."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

CELL_PIXELS = 16

_FLOOR, _WALL = (222, 214, 200), (84, 78, 72)
_BOX, _BOX_ON_TARGET = (176, 112, 48), (72, 152, 72)
_TARGET, _PLAYER = (208, 64, 64), (56, 96, 184)

_PATCHES: Mapping[str, tuple[tuple[tuple[int, int, int], int], ...]] = {
    "#": ((_WALL, 0),),
    "_": (),
    "O": ((_TARGET, 6),),
    "X": ((_BOX, 2),),
    "*": ((_BOX_ON_TARGET, 2), (_TARGET, 6)),
    "P": ((_PLAYER, 4),),
    "S": ((_TARGET, 2), (_PLAYER, 4)),
}
"""Letter of the board to squares drawn onto the floor: colour, and distance from the border."""


def draw_image(board: str) -> np.ndarray:
    """Picture of a board.

    Args:
        board: rows of letters as in `envs.sokoban.env.board_text`.

    Returns:
        uint8 array ``[num_rows * CELL_PIXELS, num_columns * CELL_PIXELS, 3]``, red first.

    Example:
        >>> draw_image("# P").shape
        (16, 32, 3)
    """
    rows = [[_tile(letter) for letter in line.split()] for line in board.split("\n")]
    return np.concatenate([np.concatenate(row, axis=1) for row in rows], axis=0)


@functools.cache
def _tile(letter: str) -> np.ndarray:
    tile = np.empty((CELL_PIXELS, CELL_PIXELS, 3), dtype=np.uint8)
    tile[:] = _FLOOR
    for colour, inset in _PATCHES[letter]:
        tile[inset : CELL_PIXELS - inset, inset : CELL_PIXELS - inset] = colour
    return tile
