"""Start and stop the prefork server from the launcher's side."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from megatron_agent.backend.cpu.prefork import client, protocol
from megatron_agent.errors import HookError

PRELOAD = (f"{__package__}.preload",)
SOCKET, STAND_IN = "socket", "python"
"""Names in a server's folder."""


@contextmanager
def prefork_server(
    log_path: Path, modules: Sequence[str] = PRELOAD, timeout_s: float = 300.0
) -> Iterator[PreforkServer]:
    """A server for the length of a run; its end takes every process it forked along.

    Args:
        log_path: where its output goes.
        modules: what to import before the first fork.
        timeout_s: how long :meth:`PreforkServer.wait_ready` waits.
    """
    with tempfile.TemporaryDirectory(prefix="prefork-") as folder:
        server = PreforkServer(Path(folder), log_path, modules, timeout_s)
        try:
            yield server
        finally:
            server.stop()


class PreforkServer:
    """A running (or still importing) server. Made by :func:`prefork_server`."""

    def __init__(
        self, folder: Path, log_path: Path, modules: Sequence[str], timeout_s: float
    ) -> None:
        self._socket = folder / SOCKET
        self._log_path, self._timeout_s = log_path, timeout_s
        self.python = write_stand_in(folder)
        self.environment = server_environment(folder)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *server_arguments(folder, modules)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,  # a Ctrl-C in the terminal is for the launcher alone
            )

    def wait_ready(self) -> None:
        """Wait until the imports are done.

        Raises:
            HookError: it ended or took too long; the message holds the end of its log.
        """
        deadline = time.monotonic() + self._timeout_s
        while not self._socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = self._log_path.read_text(errors="replace")[-2000:]
                raise HookError(f"The prefork server did not start ({self._log_path}):\n{tail}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server and everything forked from it."""
        if not self._socket.exists():
            self._process.kill()  # still importing: it looks at nothing, and has forked nothing
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def wait_for_server(socket: Path, timeout_s: float = 120.0) -> None:
    """Wait for a server that somebody else has begun on this node; without one, processes are
    started as plain ones, which takes longer and is no error.
    """
    deadline = time.monotonic() + timeout_s
    while socket.parent.is_dir() and not socket.exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def write_stand_in(folder: Path) -> Path:
    """Write the executable that runs the client; ``-I -S`` keep its own start to a few
    milliseconds.
    """
    path = folder / STAND_IN
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{client.__file__}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def server_environment(folder: Path) -> dict[str, str]:
    """What a process must have in its environment to be forked from the server in ``folder``, and
    to let its own children be.
    """
    return {
        protocol.SOCKET_VARIABLE: str(folder / SOCKET),
        protocol.PYTHON_VARIABLE: str(folder / STAND_IN),
    }


def server_arguments(folder: Path, modules: Sequence[str] = PRELOAD) -> list[str]:
    """What follows ``python`` on the server's command line."""
    return ["-m", f"{__package__}.server", str(folder / SOCKET), *modules]
