"""Reading parameters ahead: order, errors, and how much waits."""

from __future__ import annotations

import threading

import pytest

from megatron_agent.checkpoint.read_ahead import read_ahead

pytestmark = pytest.mark.unit


def one(_: object) -> int:
    return 1


def test_as_much_is_read_ahead_as_may_wait() -> None:
    begun: list[int] = []
    third_is_read = threading.Event()

    def read(size: int) -> int:
        begun.append(size)
        if size == 3:
            third_is_read.set()
        return 10 * size

    sizes = (4, 2, 3, 1, 9, 5)
    pairs = read_ahead(sizes, read, lambda size: size, max_bytes=6)
    assert next(pairs) == (4, 40)  # 4 and 2 may wait together, and 3 more may not
    assert 3 not in begun
    assert next(pairs) == (2, 20)  # 2, 3 and 1 may
    assert third_is_read.wait(timeout=60)
    assert list(pairs) == [(3, 30), (1, 10), (9, 90), (5, 50)]
    assert begun == list(sizes)


def test_the_next_is_read_while_the_last_is_used() -> None:
    second_is_read = threading.Event()

    def read(key: int) -> None:
        if key == 2:
            second_is_read.set()

    pairs = read_ahead((1, 2, 3), read, one, max_bytes=2)
    next(pairs)
    assert second_is_read.wait(timeout=60)


def test_an_error_comes_at_its_turn() -> None:
    pairs = read_ahead((1, 0, 2), lambda key: 1 // key, one, max_bytes=9)
    assert next(pairs) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(pairs)


def test_what_is_left_in_the_middle_ends_the_thread() -> None:
    pairs = read_ahead(range(3), str, one, max_bytes=1)
    next(pairs)
    pairs.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("read-ahead")]


def test_nothing_to_read() -> None:
    assert list(read_ahead((), str, one, max_bytes=1)) == []
