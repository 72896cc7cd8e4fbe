"""Noticing a lost process while the driver waits for something that will never come.

verl waits for episodes in TransferQueue, without a deadline. When the process that keeps the queue,
or one that plays the episodes, is gone, nobody tells the driver: it would wait until the job's time
is up, on machines that do nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any

import ray
from ray.exceptions import RayActorError

from megatron_agent.backend.lost_process import (
    EXIT_RESTART,
    first_line,
    is_lost_process,
    ranks_of,
    servers_of,
)
from megatron_agent.errors import LostProcessError

logger = logging.getLogger(__name__)

WAKE = signal.SIGUSR2
"""Interrupts the main thread, whatever it waits for."""


class LossWatch:
    """Pings actors from a thread of its own; use as a context manager in the main thread.

    When one is gone, the main thread has ``grace_s`` to find out by itself, which gives the better
    message; then :class:`LostProcessError` is raised in it, or Ray's own error where the actor's
    constructor raised. If it has not left the context another ``grace_s`` later, because the
    clean-up waits as well, the process ends with 86, or 1 after such an error.

    Args:
        actors: the actors to watch, asked for at each look: a run makes some of them later.
        pause_s: between two looks.
        grace_s: see above.
    """

    def __init__(
        self,
        actors: Callable[[], Iterable[Any]],
        *,
        pause_s: float = 5.0,
        grace_s: float = 30.0,
    ) -> None:
        self._actors, self._pause_s, self._grace_s = actors, pause_s, grace_s
        self._pings: dict[Any, Any] = {}
        self._loss = ""
        self._error: RayActorError | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loss-watch", daemon=True)

    def __enter__(self) -> LossWatch:
        signal.signal(WAKE, self._raise_loss)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        # One that is on its way comes to nothing from now on.
        signal.signal(WAKE, signal.SIG_IGN)

    def _watch(self) -> None:
        while not self._done.wait(self._pause_s):
            loss = self._look()
            if not loss:
                continue
            if self._done.wait(self._grace_s):
                return
            self._loss = loss
            signal.pthread_kill(threading.main_thread().ident or 0, WAKE)
            if not self._done.wait(self._grace_s):
                logger.error("A process of the run was lost (%s); leaving without clean-up.", loss)
                logging.shutdown()
                os._exit(EXIT_RESTART if self._error is None else 1)
            return

    def _look(self) -> str:
        """What Ray says of an actor that is gone; empty when all are there, or busy."""
        try:
            for actor in self._actors():
                # One question at a time: a rank that is busy for minutes answers afterwards.
                if actor not in self._pings:
                    self._pings[actor] = actor.__ray_ready__.remote()
            for actor, ping in list(self._pings.items()):
                answered, _ = ray.wait([ping], timeout=0)
                if answered:
                    del self._pings[actor]
                    ray.get(ping)
        except RayActorError as error:
            # A constructor would raise the same at every start.
            self._error = None if is_lost_process(error) else error
            return first_line(error)
        except Exception:  # Ray itself is ending: whoever ended it knows
            logger.debug("The processes of the run could not be asked.", exc_info=True)
        return ""

    def _raise_loss(self, _signum: int, _frame: FrameType | None) -> None:
        if self._error is not None:
            raise self._error
        raise LostProcessError(f"nothing more will come: {self._loss}")


def watched_actors(trainer: Any, agent_loops: Any) -> list[Any]:
    """Every actor that a training step waits for, TransferQueue's (made by this process) too.

    Args:
        trainer: verl's trainer: its ranks and servers.
        agent_loops: verl's agent loop manager: who plays the episodes.
    """
    from transfer_queue import interface

    controller = interface._TQ_CONTROLLER
    storage = (interface._TQ_STORAGE or {}).get("SimpleStorage", {}).values()
    queue = [*storage, *([] if controller is None else [controller])]
    players = getattr(agent_loops, "agent_loop_workers", ())
    return [*ranks_of(trainer), *servers_of(trainer), *players, *queue]
