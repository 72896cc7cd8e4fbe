"""The process that imports once and forks many times.

Usage: ``python -m megatron_agent.backend.cpu.prefork.server SOCKET MODULE [MODULE ...]``. It
imports the modules, then answers requests on the socket. It ends, and takes everything it forked
with it, when its standard input closes: that is, when the launcher ends, however it ends.

The server stays single-threaded (a fork copies one thread only). Libraries whose threads survive a
fork by their own doing, such as pyarrow's allocator, are fine; others would show up as hangs, so
the number of Python threads is checked before it answers.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import logging
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from megatron_agent.backend.cpu.prefork import protocol

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_FIRST_HIGH_FD = 512
_OPTIONS_WITH_VALUE = ("-W", "-X")


@dataclass
class _Server:
    listener: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    clients: dict[int, socket.socket] = field(default_factory=dict)
    """Connection of each living child, by the child's pid."""

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """Answer until told to end.

        Returns:
            In a forked child: its request and descriptors. In the server: None, when it is time to
            end.
        """
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(self.listener, selectors.EVENT_READ, "listener")
        self.selector.register(wake_read, selectors.EVENT_READ, "child")
        self.selector.register(0, selectors.EVENT_READ, "stdin")
        while True:
            for key, _ in self.selector.select():
                if key.data == "stdin" and not os.read(0, 4096):
                    self._kill_all()
                    return None
                if key.data == "child":
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                    self._reap()
                elif key.data == "listener":
                    request = self._accept()
                    if request is not None:
                        signal.set_wakeup_fd(-1)
                        os.close(wake_read)
                        os.close(wake_write)
                        return request
                elif isinstance(key.data, int):
                    self._client_gone(key.data)

    def _accept(self) -> tuple[dict[str, Any], list[int]] | None:
        connection, _ = self.listener.accept()
        try:
            received = protocol.receive_request(connection)
        except (OSError, ValueError):
            received = None
        if received is None:
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            self.selector.close()
            self.listener.close()
            connection.close()
            for other in self.clients.values():
                other.close()
            return received
        for descriptor in received[1]:
            os.close(descriptor)
        self.clients[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, pid)
        with contextlib.suppress(OSError):
            protocol.send_int(connection, pid)
        return None

    def _client_gone(self, pid: int) -> None:
        """Clients never speak after their request: readable means closed, so the client was
        killed.
        """
        connection = self.clients.get(pid)
        if connection is not None:
            self.selector.unregister(connection)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self.clients.pop(pid, None)
            if connection is None:
                continue
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(connection)
            with contextlib.suppress(OSError):
                protocol.send_int(connection, status)
            connection.close()

    def _kill_all(self) -> None:
        for pid in self.clients:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def become(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Turn this freshly forked process into the one that was asked for, up to running its
    program.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ray ends the process group of a worker that died; the server and all others are in ours.
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # First out of the way, then into place: a target number may be in use by another received one.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FIRST_HIGH_FD) for fd in descriptors]
    os.closerange(0, _FIRST_HIGH_FD)
    for source, target in zip(high, request["fds"], strict=True):
        os.dup2(source, target, inheritable=True)
        os.close(source)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the process's own, open until it ends
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # What a Python does that starts: the server has read only its own.
    for entry in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)
    if "numpy" in sys.modules:  # random reseeds itself after a fork, numpy does not
        sys.modules["numpy"].random.seed()


def run_program(argv: Sequence[str]) -> None:
    """Run what follows ``python`` on a command line: ``[options] -c CODE | -m MODULE | FILE
    [args]``.
    """
    arguments = list(argv)
    while arguments and arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        option = arguments.pop(0)
        if option in _OPTIONS_WITH_VALUE:
            arguments.pop(0)
    if not arguments:
        raise SystemExit("prefork: nothing to run")
    kind = arguments.pop(0)
    if kind == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    if kind == "-c":
        source, filename = arguments.pop(0), "<string>"
        sys.argv = ["-c", *arguments]
    else:
        filename = kind
        with open(filename, "rb") as file:
            source = file.read().decode()
        sys.argv = [filename, *arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(filename)))
        main.__file__ = filename
    exec(compile(source, filename, "exec"), main.__dict__)  # noqa: S102 - what `python` does


def main() -> None:
    """See the module's docstring."""
    socket_path, modules = sys.argv[1], sys.argv[2:]
    for name in modules:
        importlib.import_module(name)
    if threading.active_count() > 1:
        names = [thread.name for thread in threading.enumerate()]
        raise SystemExit(
            f"prefork: an import started threads ({names}); they would not survive a fork"
        )
    gc.collect()
    gc.freeze()  # so that collections in the children do not copy the parent's pages
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(socket_path + ".partial")
    listener.listen(128)
    os.rename(socket_path + ".partial", socket_path)
    child = _Server(listener).serve()
    if child is not None:
        become(*child)
        run_program(child[0]["argv"])


if __name__ == "__main__":
    main()
