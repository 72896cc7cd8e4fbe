"""Stopping a run from outside: finish the step, write a checkpoint, leave.

The first SIGINT or SIGTERM asks; the trainer looks between two steps, and while it waits for
episodes. A second signal ends at once, as somebody who presses Ctrl-C twice means it. SIGUSR1 asks
too: Slurm sends it before a time limit, and the exit code then says that the run wants to go on.
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

EXIT_REQUEUE = 85
"""Exit code after SIGUSR1: the run has written what it needs; please start it again."""


class StopRequested(MegatronAgentError, RuntimeError):
    """The run was asked to stop and has written what it needs to go on later.

    Args:
        global_step: the last finished training step.
    """

    def __init__(self, global_step: int) -> None:
        super().__init__(global_step)
        self.global_step = global_step

    def __str__(self) -> str:
        return f"stopped on request after step {self.global_step}"


class StopSwitch:
    """Process-wide flag set by the first signal."""

    _signal: int | None = None
    _num_signals = 0
    _asked_at_s = 0.0

    @classmethod
    def install(cls) -> None:
        """Take over the stop signals of this process. Call in the main thread, after ``ray.init``,
        which installs handlers of its own.
        """
        cls._signal, cls._num_signals = None, 0
        for signum in STOP_SIGNALS:
            signal.signal(signum, cls._handle)

    @classmethod
    def requested(cls) -> bool:
        """True once a signal came."""
        return cls._signal is not None

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
    def _handle(cls, signum: int, _frame: FrameType | None) -> None:
        cls._num_signals += 1
        if cls._num_signals > 2:
            os._exit(128 + signum)
        if cls._num_signals == 2:
            # Unwinds the stack, so that Ray and what it started end with us.
            logger.warning("Second %s: leaving at once.", signal.Signals(signum).name)
            raise KeyboardInterrupt
        cls._signal, cls._asked_at_s = signum, time.monotonic()
        logger.warning(
            "%s: will stop after this step and write a checkpoint. Send it again to leave at once.",
            signal.Signals(signum).name,
        )
