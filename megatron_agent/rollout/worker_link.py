"""The parent's end of the socket to one worker process: requests in line, answers in order.

Requests are sent at once and wait in the worker's socket, so that it goes from one environment to
the next without waiting for its parent. The worker serves them in order, one at a time, and each
answer is sent as soon as it is there: the answer to one request is the moment at which the next one
begins, and from which its deadline counts. A deadline so measures one environment's own time, and
whoever is first in line when something goes wrong is the one that it happened to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from megatron_agent.errors import (
    EnvDiedError,
    EnvError,
    EnvGarbageError,
    EnvLostError,
    EnvTimeoutError,
)
from megatron_agent.rollout.wire import OK, FrameDecoder, FrameError, encode_frame, whole_payload

OnFault = Callable[[type[EnvError], str], None]
"""Called once, with the kind of what went wrong and a reason in words (``died during step``)."""


class _Request:
    __slots__ = ("answer", "operation", "timeout_s")

    def __init__(self, operation: str, timeout_s: float, answer: asyncio.Future[Any]) -> None:
        self.operation, self.timeout_s, self.answer = operation, timeout_s, answer


class WorkerLink(asyncio.Protocol):
    """Requests and answers over one connection, until the first fault.

    Args:
        on_fault: must end the process and call `fail_all`; the connection is of no more use.
    """

    def __init__(self, on_fault: OnFault) -> None:
        self._on_fault: OnFault | None = on_fault
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._outbox: list[bytes] = []
        self._line: deque[_Request] = deque()
        self._head_deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """No request is under way."""
        return not self._line

    def expect_ready(self, timeout_s: float) -> asyncio.Future[tuple[Any, float]]:
        """The message with which a new process reports ready."""
        return self._line_up("start", timeout_s)

    def request(
        self, message: tuple[str, str, Any], *, timeout_s: float
    ) -> asyncio.Future[tuple[Any, float]]:
        """Send a request.

        Args:
            message: operation, session key, arguments.
            timeout_s: deadline, counted from the moment at which the worker begins with it.

        Returns:
            To be awaited: the answer and the seconds that the environment took. It may be
            cancelled; the worker goes on, and its answer is dropped.
        """
        frame = encode_frame(message)  # may raise: before anything is expected
        answer = self._line_up(message[0], timeout_s)
        if not self._outbox:
            # One system call for all that the sessions ask in this turn of the event loop.
            self._loop.call_soon(self._send)
        self._outbox.append(frame)
        return answer

    def fail_all(self, first: EnvError, others: EnvError) -> None:
        """End of the connection: the request under way gets one error, those behind it another."""
        self._on_fault = None
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        line, self._line = self._line, deque()
        for position, request in enumerate(line):
            if not request.answer.done():
                error = first if position == 0 else others
                request.answer.set_exception(type(error)(*error.args))

    def close(self) -> None:
        """Let the worker see the end of its requests."""
        self._on_fault = None
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No assertion: those of uvloop, which Ray's actors run on, derive from no class of asyncio.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._answer(*message)
        except (FrameError, TypeError, ValueError, IndexError) as error:
            self._fault(EnvGarbageError, f"sent garbage in answer to {self._head()}: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        what = f"died during {self._head()}" if self._line else "died while idle"
        self._fault(EnvDiedError if self._line else EnvLostError, what)

    def _send(self) -> None:
        assert self._transport is not None
        outbox, self._outbox = self._outbox, []
        self._transport.write(b"".join(outbox))

    def _line_up(self, operation: str, timeout_s: float) -> asyncio.Future[tuple[Any, float]]:
        answer: asyncio.Future[tuple[Any, float]] = self._loop.create_future()
        self._line.append(_Request(operation, timeout_s, answer))
        if len(self._line) == 1:
            self._begin(timeout_s)
        return answer

    def _answer(self, status: str, payload: Any, seconds: float) -> None:
        if status == OK:  # may raise: before the request leaves the line
            payload, seconds = whole_payload(self._line[0].operation, payload), float(seconds)
        answer = self._line.popleft().answer
        if self._line:
            self._begin(self._line[0].timeout_s)
        if answer.done():  # nobody waits any more
            return
        if status == OK:
            answer.set_result((payload, seconds))
        else:
            answer.set_exception(EnvError(str(payload)))

    def _begin(self, timeout_s: float) -> None:
        """The worker has come to the first request in line."""
        self._head_deadline_s = self._loop.time() + timeout_s
        # One timer serves many requests: it is moved only when it would ring too late.
        if self._timer is None or self._timer.when() > self._head_deadline_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._head_deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._line:
            return
        if self._loop.time() < self._head_deadline_s:
            self._set_timer()
            return
        head = self._line[0]
        self._fault(EnvTimeoutError, f"{head.operation} took more than {head.timeout_s:g} s")

    def _head(self) -> str:
        return self._line[0].operation if self._line else "nothing"

    def _fault(self, kind: type[EnvError], reason: str) -> None:
        on_fault, self._on_fault = self._on_fault, None
        if on_fault is not None:
            on_fault(kind, reason)
