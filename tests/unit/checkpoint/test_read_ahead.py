"""Reading parameters ahead: order, errors, and how much waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from megatron_agent.checkpoint.read_ahead import read_ahead

pytestmark = pytest.mark.unit


def one(_: object) -> int:
    return 1


@pytest.mark.parametrize(
    ("sizes", "begun_by_turn"),
    [
        # Behind 4 may wait 2 and 3, which are 5; 1 more would still fit, and 9 only alone.
        ((4, 2, 3, 1, 9, 5), (4, 4, 4, 5, 6, 6)),
        # One may wait whatever its size.
        ((9, 9, 9), (2, 3, 3)),
        ((), ()),
    ],
)
def test_as_much_is_read_ahead_as_may_wait(
    sizes: tuple[int, ...], begun_by_turn: tuple[int, ...]
) -> None:
    submitted: list[int] = []

    class Reader:
        """Runs at once what a thread would run soon."""

        def __init__(self, **_: object) -> None:
            pass

        def __enter__(self) -> Reader:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, read: Callable[[int], int], key: int) -> Future[int]:
            submitted.append(key)
            future: Future[int] = Future()
            future.set_result(read(key))
            return future

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("megatron_agent.checkpoint.read_ahead.ThreadPoolExecutor", Reader)
        pairs = read_ahead(sizes, lambda size: 10 * size, lambda size: size, max_bytes=6)
        turns = [(pair, len(submitted)) for pair in pairs]
    assert [pair for pair, _ in turns] == [(size, 10 * size) for size in sizes]
    assert tuple(number for _, number in turns) == begun_by_turn


def test_the_next_is_read_while_the_last_is_used() -> None:
    second_is_read = threading.Event()

    def read(key: int) -> None:
        if key == 2:
            second_is_read.set()

    pairs = read_ahead((1, 2, 3), read, one, max_bytes=1)
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
