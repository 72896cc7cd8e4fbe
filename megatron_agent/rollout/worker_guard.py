"""Nothing outlives a worker process: a guard kills what its environments started.

The kernel kills a worker when its parent dies (`signal_at_parents_death`), but not the worker's own
children: a game server or a Java machine would stay behind for ever. So each worker has a small
child that does nothing but wait for the end of the worker, however it comes, and then kills the
whole process group. A thread would not do: there is none left after SIGKILL.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_MAX_DESCRIPTORS = 256
_LOOK_EVERY_S = 60.0


def signal_at_parents_death(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def start_guard() -> None:
    """Fork the guard of this process, which must lead its process group (Linux; nothing elsewhere).

    To be called early: while little is imported the fork costs a megabyte, and no thread runs yet.
    """
    if sys.platform != "linux":
        return
    worker_pid = os.getpid()
    if os.fork() == 0:
        try:
            _guard(worker_pid)
        finally:
            os._exit(0)


def _guard(worker_pid: int) -> None:
    os.closerange(0, _MAX_DESCRIPTORS)  # an open socket or pipe would hide the worker's end
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal_at_parents_death(signal.SIGTERM)
    while os.getppid() == worker_pid:
        signal.sigtimedwait({signal.SIGTERM}, _LOOK_EVERY_S)
    os.killpg(worker_pid, signal.SIGKILL)
