"""Cards as an RGB picture, drawn with numpy and a pixel font: equal views give equal pixels."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from envs.cards.games import View

HEIGHT, WIDTH = 160, 320
_CARD_HEIGHT, _CARD_WIDTH, _GAP = 48, 36, 8
_TABLE, _PAPER, _BACK, _INK = (24, 92, 60), (248, 246, 240), (64, 80, 144), (24, 24, 24)

# Five rows of three pixels, each row a digit from 0 to 7.
_GLYPHS: Mapping[str, str] = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717",
    "6": "74757", "7": "71122", "8": "75757", "9": "75717", "A": "25755", "J": "11157",
    "Q": "75573", "K": "55655", "+": "02720", "-": "00700", "*": "05250", "/": "11244",
    "(": "12221", ")": "42224", "=": "07070", "?": "71202",
}  # fmt: skip


def draw_image(view: View) -> np.ndarray:
    """Rows of cards from the top, the caption below.

    Args:
        view: what can be seen; cards and text that do not fit are cut off.

    Returns:
        uint8 array ``[HEIGHT, WIDTH, 3]``, red first.
    """
    picture = np.empty((HEIGHT, WIDTH, 3), dtype=np.uint8)
    picture[:] = _TABLE
    top = _GAP
    for row in view.rows:
        for number, rank in enumerate(row):
            _paste(picture, _card(rank), top, _GAP + number * (_CARD_WIDTH + _GAP))
        top += _CARD_HEIGHT + _GAP
    if view.caption:
        _paste(picture, _text(view.caption, _PAPER, _INK), top, _GAP)
    return picture


@functools.cache
def _card(rank: str) -> np.ndarray:
    paper = _BACK if rank == "?" else _PAPER
    card = np.empty((_CARD_HEIGHT, _CARD_WIDTH, 3), dtype=np.uint8)
    card[:] = paper
    label = _text(rank, paper, _PAPER if rank == "?" else _INK)
    top, left = (_CARD_HEIGHT - label.shape[0]) // 2, (_CARD_WIDTH - label.shape[1]) // 2
    _paste(card, label, top, left)
    return card


def _text(text: str, paper: tuple[int, int, int], ink: tuple[int, int, int]) -> np.ndarray:
    """Characters side by side, four pixels to a font pixel."""
    mask = np.concatenate([_glyph(char) for char in text], axis=1)
    mask = mask.repeat(4, axis=0).repeat(4, axis=1)
    return np.where(mask[..., None], np.array(ink), np.array(paper)).astype(np.uint8)


@functools.cache
def _glyph(char: str) -> np.ndarray:
    rows = [[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in _GLYPHS[char]]
    return np.pad(np.array(rows, dtype=bool), ((0, 0), (0, 1)))


def _paste(picture: np.ndarray, patch: np.ndarray, top: int, left: int) -> None:
    height = max(0, min(patch.shape[0], picture.shape[0] - top))
    width = max(0, min(patch.shape[1], picture.shape[1] - left))
    picture[top : top + height, left : left + width] = patch[:height, :width]
