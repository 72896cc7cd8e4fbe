"""The parent's handle on one worker process: start, ask, kill, replace.

One request is in flight per worker, so a deadline measures one environment's own time and never the
queue before it. When a call passes its deadline, or the process dies or sends garbage, the whole
process is killed (SIGKILL, with the processes it started) and the next call starts a new one. The
other sessions that lived in it are lost with it and get the same `EnvError`: a thread that hangs
inside native code cannot be ended any other way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_agent.errors import EnvError
from megatron_agent.rollout.wire import OK, FrameError, encode_frame, read_frame_async

_log = logging.getLogger(__name__)

_PROGRAM = "megatron_agent.rollout.env_worker"
_EXIT_POLL_S = 0.01
_REAP_TIMEOUT_S = 2.0
_TAIL_BYTES = 2000


class WorkerProcess:
    """One worker, replaced as often as needed.

    Args:
        worker_id: number in its pool, for messages and the name of its log.
        start_timeout_s: deadline for a new process to report ready.
        log_dir: where what the process prints goes (``env_worker_<id>.log``); None: to the
            parent's own stderr.
    """

    def __init__(self, worker_id: int, *, start_timeout_s: float, log_dir: Path | None) -> None:
        self.worker_id = worker_id
        self.num_starts = 0
        """Also the number of the living process: a session remembers the one it lives in."""
        self.last_death = ""
        self._start_timeout_s = start_timeout_s
        self._log_path = log_dir / f"env_worker_{worker_id}.log" if log_dir else None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id while a process lives."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start a process if none lives; raises EnvError when none is ready within the deadline."""
        async with self._lock:
            await self._ensure_started()

    async def ask(
        self,
        operation: str,
        session_key: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        incarnation: int | None = None,
    ) -> tuple[Any, float, int]:
        """Send one request and wait for its answer.

        A caller that is cancelled leaves; the exchange goes on without it, so that the next request
        does not read the answer to this one.

        Args:
            timeout_s: deadline from the moment the worker is free.
            incarnation: the ``num_starts`` that the session lives in; None starts a process if
                none lives.

        Returns:
            The answer, the seconds that the environment took, and the incarnation that gave it.

        Raises:
            EnvError: the environment raised, or its process hung, died, was replaced or sent
                garbage.
        """
        exchange = asyncio.ensure_future(
            self._exchange((operation, session_key, dict(arguments)), timeout_s, incarnation)
        )
        exchange.add_done_callback(_retrieve_exception)
        return await asyncio.shield(exchange)

    async def close(self, timeout_s: float) -> None:
        """End the process: politely when it is idle, within the deadline in any case."""
        self._closed = True
        process = self._process
        if process is None:
            return
        if not self._lock.locked():
            self._drop_connection()  # the worker sees the end of its input, closes and leaves
            await _wait_for_exit(process, timeout_s)
        self._kill("the pool was closed")

    async def _exchange(
        self, request: tuple[str, str, dict[str, Any]], timeout_s: float, incarnation: int | None
    ) -> tuple[Any, float, int]:
        async with self._lock:
            if incarnation is None:
                await self._ensure_started()
            elif incarnation != self.num_starts or self._process is None:
                raise EnvError(f"the process of this session is gone: {self.last_death}")
            operation = request[0]
            try:
                async with asyncio.timeout(timeout_s):
                    status, payload, seconds = await self._round_trip(request)
            except TimeoutError:
                raise self._lost(f"{operation} took more than {timeout_s:g} s") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise self._lost(f"died during {operation}") from None
            except (FrameError, TypeError, ValueError) as error:
                raise self._lost(f"sent garbage in answer to {operation}: {error}") from error
            if status != OK:
                raise EnvError(str(payload))
            return payload, float(seconds), self.num_starts

    async def _round_trip(self, message: Any) -> tuple[str, Any, float]:
        assert self._reader is not None and self._writer is not None
        self._writer.write(encode_frame(message))
        await self._writer.drain()
        status, payload, seconds = await read_frame_async(self._reader)
        return status, payload, seconds

    async def _ensure_started(self) -> None:
        if self._closed:
            raise EnvError(f"environment worker {self.worker_id}: the pool is closed.")
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._lost("died while idle")
        self.num_starts += 1
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._spawn(theirs.fileno())
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await read_frame_async(self._reader)
        except TimeoutError:
            raise self._lost(f"was not ready within {self._start_timeout_s:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError, FrameError):
            raise self._lost("died at start") from None

    def _spawn(self, file_descriptor: int) -> subprocess.Popen[bytes]:
        # The child must find what the parent finds, also when the parent's path was set in code.
        child_env = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        child_env.setdefault("OMP_NUM_THREADS", "1")
        command = [sys.executable, "-m", _PROGRAM, str(file_descriptor), str(os.getpid())]
        with contextlib.ExitStack() as stack:
            log_file = None
            if self._log_path:
                self._log_path.parent.mkdir(parents=True, exist_ok=True)
                log_file = stack.enter_context(self._log_path.open("ab"))
            return subprocess.Popen(
                command,
                env=child_env,
                stdin=subprocess.DEVNULL,
                stderr=log_file,
                pass_fds=(file_descriptor,),
                start_new_session=True,  # a group of its own: killed with all that it starts
            )

    def _lost(self, reason: str) -> EnvError:
        """Kill what is left of the process; the error to raise for it."""
        process = self._process
        exit_code = process.poll() if process else None
        how = f" (exit code {exit_code})" if exit_code is not None else ""
        death = f"environment worker {self.worker_id} {reason}{how}{self._log_tail()}"
        self._kill(death)
        _log.warning("%s; it will be replaced.", death)
        return EnvError(death)

    def _kill(self, reason: str) -> None:
        self._drop_connection()
        process, self._process = self._process, None
        if process is None:
            return
        self.last_death = reason
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_REAP_TIMEOUT_S)  # at once, unless it is stuck in the kernel

    def _drop_connection(self) -> None:
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()

    def _log_tail(self) -> str:
        if self._log_path is None or not self._log_path.exists():
            return ""
        text = self._log_path.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        last_line = text.rsplit("\n", 1)[-1]
        return f"; last line of {self._log_path}: {last_line!r}" if text else ""


async def _wait_for_exit(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    # Polled rather than awaited: asyncio's child watchers differ between the threads that Ray uses.
    deadline_s = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline_s:
        await asyncio.sleep(_EXIT_POLL_S)


def _retrieve_exception(exchange: asyncio.Future[Any]) -> None:
    # Nobody may be waiting any more; asking for the exception keeps asyncio from complaining.
    if not exchange.cancelled():
        exchange.exception()
