"""The next parameters are read and translated while the last one is written.

Both sides spend their time in reads, copies, hashes and writes, which let go of Python's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor


def read_ahead[Key, Value](
    keys: Iterable[Key],
    read: Callable[[Key], Value],
    num_bytes: Callable[[Key], int],
    max_bytes: int,
) -> Iterator[tuple[Key, Value]]:
    """Yield each key with what ``read`` makes of it, in order; a thread reads ahead.

    Sizes differ by orders of magnitude in a model, so what waits is counted in bytes: reading ahead
    by one would have a large one read while a tiny one is written, and the other way round.

    Args:
        keys: what to read.
        read: is called with one key at a time. Its error is raised when it is that key's turn.
        num_bytes: size of what ``read`` returns.
        max_bytes: what may be read ahead; one key is, whatever its size.

    Example:
        >>> list(read_ahead("ab", str.upper, len, 1))
        [('a', 'A'), ('b', 'B')]
    """
    waiting: deque[tuple[Key, Future[Value]]] = deque()
    waiting_bytes = 0
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as reader:
        for key in keys:
            while waiting and waiting_bytes + num_bytes(key) > max_bytes:
                first, future = waiting.popleft()
                waiting_bytes -= num_bytes(first)
                yield first, future.result()
            waiting.append((key, reader.submit(read, key)))
            waiting_bytes += num_bytes(key)
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
