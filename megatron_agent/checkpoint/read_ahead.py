"""The next parameter is read and translated while the last one is written.

Both sides spend their time in reads, copies, hashes and writes, which let go of Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor


def read_ahead[Key, Value](
    keys: Iterable[Key], read: Callable[[Key], Value]
) -> Iterator[tuple[Key, Value]]:
    """Yield each key with what ``read`` makes of it, in order; one is read ahead, in a thread.

    Args:
        keys: what to read.
        read: is called with one key at a time. Its error is raised when it is that key's turn.

    Example:
        >>> list(read_ahead("ab", str.upper))
        [('a', 'A'), ('b', 'B')]
    """
    last: tuple[Key, Future[Value]] | None = None
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as reader:
        for key in keys:
            following = key, reader.submit(read, key)
            if last is not None:
                yield last[0], last[1].result()
            last = following
        if last is not None:
            yield last[0], last[1].result()
