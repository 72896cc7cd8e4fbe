"""Stopping a run from outside: finish the step, write a checkpoint, leave.

The first SIGINT or SIGTERM asks; the trainer looks between two steps, and while it waits for
episodes. A second signal ends at once, as somebody who presses Ctrl-C twice means it. SIGUSR1 asks
too: Slurm sends it before a time limit, and the exit code then says that the run wants to go on.

A run takes a minute or more until its first step, and SIGUSR1 kills a process that has no handler.
So the program remembers SIGUSR1 and SIGTERM from its first line on (`StopSwitch.remember`), and
between the parts of its start-up looks whether it should leave (`StopSwitch.leave_if_requested`).
Ctrl-C ends a start-up at once.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from types import FrameType

from megatron_agent.errors import MegatronAgentError

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
EARLY_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Those that somebody else than a person at the keyboard sends."""

EXIT_REQUEUE = 85
"""Exit code after SIGUSR1: the run has written what it needs; please start it again."""


class StopRequested(MegatronAgentError, RuntimeError):
    """The run was asked to stop and has written what it needs to go on later.

    Args:
        global_step: the last finished training step; None when the run had not begun to train.
    """

    def __init__(self, global_step: int | None) -> None:
        super().__init__(global_step)
        self.global_step = global_step

    def __str__(self) -> str:
        if self.global_step is None:
            return "stopped on request before its first step"
        return f"stopped on request after step {self.global_step}"


class StopSwitch:
    """Process-wide flag set by the first signal."""

    _signal: int | None = None
    _num_signals = 0
    _asked_at_s = 0.0
    _listens = False
    _is_early = False

    @classmethod
    def remember(cls) -> None:
        """Take note of signals that come before :meth:`install`. Call in the main thread of a
        program that will train, before anything heavy is imported.
        """
        cls._begin()
        cls._is_early = True
        for signum in EARLY_SIGNALS:
            signal.signal(signum, cls._handle)

    @classmethod
    def install(cls) -> None:
        """Take over the stop signals of this process, and what :meth:`remember` took note of. Call
        in the main thread, after ``ray.init``, which installs handlers of its own.
        """
        if not cls._listens:
            cls._begin()
        cls._is_early = False
        for signum in STOP_SIGNALS:
            signal.signal(signum, cls._handle)

    @classmethod
    def release(cls) -> None:
        """The run is over: the next one in this process does not stop for its signals."""
        cls._listens = False

    @classmethod
    def leave_if_requested(cls) -> None:
        """Call where nothing has begun that must be written.

        Raises:
            StopRequested: a signal came.
        """
        if cls.requested():
            raise StopRequested(None)

    @classmethod
    def requested(cls) -> bool:
        """True once a signal came for this run."""
        return cls._listens and cls._signal is not None

    @classmethod
    def requested_since_s(cls) -> float:
        """Seconds since the first signal; 0 when none came."""
        return time.monotonic() - cls._asked_at_s if cls.requested() else 0.0

    @classmethod
    def exit_code(cls) -> int:
        """:data:`EXIT_REQUEUE` after SIGUSR1, else 128 + signal number, the shell's convention; 0
        when no signal came.
        """
        if cls._signal == signal.SIGUSR1:
            return EXIT_REQUEUE
        return 0 if cls._signal is None else 128 + cls._signal

    @classmethod
    def _begin(cls) -> None:
        cls._signal, cls._num_signals, cls._listens = None, 0, True

    @classmethod
    def _handle(cls, signum: int, _frame: FrameType | None) -> None:
        cls._num_signals += 1
        if cls._num_signals > 2:
            os._exit(128 + signum)
        if cls._num_signals == 2:
            # Unwinds the stack, so that Ray and what it started end with us.
            logger.warning("Second %s: leaving at once.", signal.Signals(signum).name)
            raise KeyboardInterrupt
        cls._signal, cls._asked_at_s = signum, time.monotonic()
        when = "after this step and write a checkpoint"
        logger.warning(
            "%s: will stop %s. Send it again to leave at once.",
            signal.Signals(signum).name,
            "before the first step" if cls._is_early else when,
        )
