"""Stands in for ``python``: asks the server for a process and lives exactly as long as it.

Run by the script that :mod:`launch` writes, with ``-I -S``: no site-packages, nothing but the
standard library. Whoever started us sees our pid, waits for us, signals us; so signals are passed
on and the exit status is the worker's. If we are killed, the server sees our end of the socket
close and kills the worker.
"""

import contextlib
import os
import select
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import protocol

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> int:
    """Ask for the process, wait for it, and return its exit code."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.environ[protocol.SOCKET_VARIABLE])
    except (KeyError, OSError):
        # No server (it ended, or this is a process of another run): be a plain Python.
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    os.set_inheritable(connection.fileno(), False)
    protocol.send_request(
        connection, sys.argv[1:], dict(os.environ), os.getcwd(), protocol.open_descriptors()
    )
    pid = protocol.receive_int(connection)
    if pid is None:
        return 1

    def forward(signum: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)

    for signum in FORWARDED:
        signal.signal(signum, forward)
    # Our copies of pipes must not keep them open when the worker closes its own.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in protocol.open_descriptors():
        if descriptor == null or descriptor == connection.fileno():
            continue
        if descriptor <= 2:
            os.dup2(null, descriptor)
        else:
            os.close(descriptor)
    _wait_for(connection)
    status = protocol.receive_int(connection)
    if status is None:
        return 1
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by in FORWARDED:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return os.waitstatus_to_exitcode(status)


def _wait_for(connection: socket.socket) -> None:
    """Until the server says something. A signal just before a plain read would be noted by Python,
    and passed on only after the read; here it wakes the wait.
    """
    wake_read, wake_write = os.pipe()
    for descriptor in (wake_read, wake_write):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    server = connection.fileno()
    while server not in select.select([server, wake_read], [], [])[0]:
        with contextlib.suppress(BlockingIOError):
            os.read(wake_read, 4096)
    signal.set_wakeup_fd(-1)


if __name__ == "__main__":
    sys.exit(main())
