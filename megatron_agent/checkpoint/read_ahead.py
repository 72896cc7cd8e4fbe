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
        max_bytes: how much may wait behind the key that is yielded; one key may, whatever its size.

    Example:
        >>> list(read_ahead("ab", str.upper, len, 1))
        [('a', 'A'), ('b', 'B')]
    """
    waiting: deque[tuple[Key, Future[Value]]] = deque()
    coming = deque(keys)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as reader:
        while waiting or coming:
            behind = sum(num_bytes(key) for key, _ in list(waiting)[1:])
            while coming and (len(waiting) < 2 or behind + num_bytes(coming[0]) <= max_bytes):
                key = coming.popleft()
                behind += num_bytes(key) if waiting else 0
                waiting.append((key, reader.submit(read, key)))
            first, future = waiting.popleft()
            yield first, future.result()
