"""What an environment shares with everything else in its process, and the time it may take."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from envs.playback import EnvContractError, require
from envs.randomness import PrivateRandomState

_WATCHED_SEED = 946_684_801
"""A state that no environment happens to seed: seeding to what is there already changes nothing."""


class DeadlineError(EnvContractError):
    """A check took longer than its deadline: something hangs."""


class _OutOfTime(BaseException):
    """Not an Exception: an environment that retries whatever is raised must not keep it."""


@contextmanager
def left_alone(name: str) -> Iterator[None]:
    """Raise EnvContractError if the global random state or the working folder is changed within.

    Both are as before afterwards, whatever happened.
    """
    folder = os.getcwd()
    try:
        with PrivateRandomState(_WATCHED_SEED):
            before = _global_random_state()
            yield
            require(
                _global_random_state() == before,
                f"{name}: the global random state of Python or numpy changed; use a generator of "
                f"your own, or save and restore the state.",
            )
        require(
            os.getcwd() == folder,
            f"{name}: the working folder changed to {os.getcwd()}; all environments of a process "
            f"share it. Use whole paths.",
        )
    finally:
        os.chdir(folder)


@contextmanager
def deadline(what: str, seconds: float) -> Iterator[None]:
    """Raise DeadlineError when the block takes longer than ``seconds``.

    Only in the main thread of a Unix process, where a signal can interrupt what hangs; elsewhere
    there is no deadline.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def out_of_time(_number: int, _frame: Any) -> None:
        raise _OutOfTime

    handler_before = signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _OutOfTime:
        raise DeadlineError(
            f"{what}: not done after {seconds:g} s. Something hangs, or is too slow for training."
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)


def _global_random_state() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, bytes(np.asarray(keys).data), tuple(rest)
