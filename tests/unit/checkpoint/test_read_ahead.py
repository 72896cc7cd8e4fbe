"""Reading one parameter ahead: order, errors, and never more than one."""

from __future__ import annotations

import threading

import pytest

from megatron_agent.checkpoint.read_ahead import read_ahead

pytestmark = pytest.mark.unit


def test_the_next_is_read_while_the_last_is_used_and_no_more() -> None:
    begun: list[int] = []
    second_is_read = threading.Event()

    def read(key: int) -> int:
        begun.append(key)
        if key == 2:
            second_is_read.set()
        return 10 * key

    pairs = read_ahead((1, 2, 3, 4), read)
    assert next(pairs) == (1, 10)
    assert second_is_read.wait(timeout=60)
    assert begun == [1, 2]
    assert list(pairs) == [(2, 20), (3, 30), (4, 40)]


def test_an_error_comes_at_its_turn() -> None:
    pairs = read_ahead((1, 0, 2), lambda key: 1 // key)
    assert next(pairs) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(pairs)


def test_what_is_left_in_the_middle_ends_the_thread() -> None:
    pairs = read_ahead(range(3), str)
    next(pairs)
    pairs.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("read-ahead")]


def test_nothing_to_read() -> None:
    assert list(read_ahead((), str)) == []
