"""The parent's handle on one worker process: start, ask, kill, replace.

When a call passes its deadline, or the process dies, sends garbage or outgrows its memory, the
whole process is killed (SIGKILL, with the processes it started) and the next call starts a new one:
a thread that hangs inside native code cannot be ended any other way. The session whose request was
under way gets an error that says what happened. The other sessions of the process get an
`EnvLostError`, and can begin again in its successor.
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

from megatron_agent.errors import EnvError, EnvLostError, EnvMemoryError
from megatron_agent.rollout.worker_link import WorkerLink

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
        self.num_sessions = 0
        """Open sessions, counted by those who open and close them."""
        self.num_starts = 0
        """Also the number of the living process: a session remembers the one it lives in."""
        self.last_death = ""
        self.reset_turn = asyncio.Lock()
        """To be held for a reset. Resets are slow: with one of them in line at a time, the steps of
        sessions that have started wait for one reset, and not for hundreds."""
        self._start_timeout_s = start_timeout_s
        self._log_path = log_dir / f"env_worker_{worker_id}.log" if log_dir else None
        self._process: subprocess.Popen[bytes] | None = None
        self._link: WorkerLink | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id while a process lives; also the id of its process group."""
        return self._process.pid if self._process else None

    async def ready(self) -> int:
        """Start a process if none lives.

        Returns:
            Its incarnation, for `ask`.

        Raises:
            EnvError: none is ready within the deadline, or the pool is closed.
        """
        async with self._starting:
            await self._ensure_started()
            return self.num_starts

    async def ask(
        self,
        operation: str,
        session_key: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        incarnation: int,
    ) -> tuple[Any, float]:
        """Send one request and wait for its answer. A caller that is cancelled leaves; the worker
        goes on.

        Args:
            timeout_s: deadline from the moment the worker comes to this request.
            incarnation: what `ready` returned for this session.

        Returns:
            The answer, and the seconds that the environment took.

        Raises:
            EnvLostError: the process is gone, and it was not this request that ended it.
            EnvError: the environment raised, or its process hung, died or sent garbage.
        """
        self._notice_death()
        if incarnation != self.num_starts or self._link is None:
            raise EnvLostError(f"the process of this session is gone: {self.last_death}")
        return await self._link.request(
            (operation, session_key, dict(arguments)), timeout_s=timeout_s
        )

    def check_memory(self, held_bytes: int, limit_bytes: int) -> None:
        """Kill the process if it holds more than it may."""
        if held_bytes > limit_bytes and self._process is not None:
            self._lose(
                EnvMemoryError,
                f"holds {held_bytes / 2**20:.0f} MiB, more than env.worker_memory_limit allows "
                f"({limit_bytes / 2**20:.0f} MiB)",
            )

    async def close(self, timeout_s: float) -> None:
        """End the process: politely when it is idle, within the deadline in any case."""
        self._closed = True
        process, link = self._process, self._link
        if process is None:
            return
        if link is not None and link.is_idle:
            link.close()  # the worker sees the end of its input, closes and leaves
            await _wait_for_exit(process, timeout_s)
        self._kill(EnvLostError, "the pool was closed")

    async def _ensure_started(self) -> None:
        if self._closed:
            raise EnvError(f"environment worker {self.worker_id}: the pool is closed.")
        self._notice_death()
        if self._process is not None:
            return
        self.num_starts += 1
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._spawn(theirs.fileno())
        link = self._link = WorkerLink(self._lose)
        ready = link.expect_ready(self._start_timeout_s)
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
        await ready

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

    def _notice_death(self) -> None:
        """Do not wait for the event loop to say that a process ended: nobody else is to blame."""
        process, link = self._process, self._link
        if process is not None and link is not None and process.poll() is not None:
            link.connection_lost(None)

    def _lose(self, kind: type[EnvError], reason: str) -> None:
        """End what is left of the process, and tell those who wait for it."""
        process = self._process
        exit_code = process.poll() if process else None
        how = f" (exit code {exit_code})" if exit_code is not None else ""
        death = f"environment worker {self.worker_id} {reason}{how}{self._log_tail()}"
        _log.warning("%s; it will be replaced.", death)
        self._kill(kind, death)

    def _kill(self, kind: type[EnvError], death: str) -> None:
        process, self._process = self._process, None
        link, self._link = self._link, None
        if process is None:
            return
        self.last_death = death
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_REAP_TIMEOUT_S)  # at once, unless it is stuck in the kernel
        if link is not None:
            lost = EnvLostError(f"the process of this session is gone: {death}")
            link.fail_all(kind(death), lost)

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
