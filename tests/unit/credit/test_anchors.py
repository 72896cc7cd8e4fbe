"""Anchor digests: equal exactly for equal states."""

from __future__ import annotations

import enum
import itertools
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from megatron_agent.anchors import anchor_digest
from megatron_agent.errors import AnchorError

pytestmark = pytest.mark.unit

GRID = np.arange(6, dtype=np.int64).reshape(2, 3)

DIFFERENT: list[Any] = [
    "1",
    b"1",
    1,
    1.0,
    True,
    "",
    b"",
    0,
    (),
    [],
    {},
    (1,),
    [1],
    ("ab", "c"),
    ("a", "bc"),
    ("a", ("b", "c")),
    ("a", "b", "c"),
    (None,),
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    {"a": (1, "b"), "c": 2},
    GRID,
    GRID.reshape(3, 2),
    GRID.ravel(),
    GRID.astype(np.int32),
    GRID.astype(np.uint64),
    GRID.astype(np.float64),
    GRID.astype(object),
    GRID.tolist(),
    GRID + 1,
    np.array(1),
    np.array(["a", "b"]),
    np.array([b"a", b"b"]),
]


class Cell(enum.IntEnum):
    GOAL = 3


def test_different_states_have_different_digests() -> None:
    digests = [anchor_digest(value) for value in DIFFERENT]
    for (a, da), (b, db) in itertools.combinations(zip(DIFFERENT, digests, strict=True), 2):
        assert da != db, (a, b)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (GRID, np.asfortranarray(GRID)),
        (GRID, GRID.astype(">i8")),
        (GRID, np.repeat(GRID, 2, axis=1)[:, ::2]),
        (np.array([0.0, np.nan]), -np.array([-0.0, np.nan])),
        (np.array(0.0), np.array(-0.0)),
        (np.array([0.5], np.float32), np.array([0.5], ">f4")),
        (np.int32(3), 3),
        (np.float64(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.bytes_(b"x"), b"x"),
        (bytearray(b"x"), b"x"),
        (Cell.GOAL, 3),
        (0.0, -0.0),
        (float("nan"), -float("nan")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.array([1, "x", None], object), np.array([1, "x", None], object)),
    ],
)
def test_equal_states_have_equal_digests(one: Any, other: Any) -> None:
    assert anchor_digest(one) == anchor_digest(other)


def test_an_int_may_be_of_any_size() -> None:
    assert anchor_digest(10**5000) != anchor_digest(10**5000 + 1)


def test_the_array_itself_is_left_alone() -> None:
    array = np.array([-0.0, np.nan])
    anchor_digest(array)
    assert np.signbit(array[0])


def test_a_digest_is_32_hex_characters_and_the_same_in_every_process() -> None:
    value = ("room", 3, {"lamp": True})
    assert re.fullmatch("[0-9a-f]{32}", anchor_digest(value))
    code = f"from megatron_agent.anchors import anchor_digest as d; print(d({value!r}))"
    other = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert other.stdout.strip() == anchor_digest(value)


def test_none_is_no_anchor() -> None:
    with pytest.raises(AnchorError, match="anchor must be a value that names the state, got None"):
        anchor_digest(None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "anchor must be str, bytes, .* got set. Convert it"),
        (object(), "anchor must be str, .* got object"),
        (1j, "got complex"),
        ((1, [2, {3}]), re.escape("anchor[1][1] must be str")),
        ({"map": {"x": object()}}, re.escape("anchor['map']['x'] must be str")),
        ({(1, 1j): 0}, re.escape("anchor key (1, 1j)[1] must be str")),
        (np.zeros(2, dtype=[("x", int)]), "must be an array of numbers, .* got dtype"),
        (np.zeros(2, dtype=np.longdouble), "got dtype float128. Convert it, e.g. to float64"),
        (np.zeros(2, dtype="M8[s]"), "got dtype datetime64"),
        (np.array([1, {2}], dtype=object), re.escape("anchor[1] must be str")),
    ],
)
def test_a_type_without_canonical_bytes_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(AnchorError, match=message):
        anchor_digest(value)
