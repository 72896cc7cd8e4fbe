"""What client and server say over a Unix socket. Standard library only: the client imports this.

Client to server: one frame, a 4-byte length and JSON ``{argv, env, cwd, fds}``, with the open file
descriptors attached (SCM_RIGHTS) in the order of ``fds``. Server to client: two 4-byte integers,
the pid when the process exists and its wait status when it has ended. If either side hangs up, the
other knows.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

SOCKET_VARIABLE = "MEGATRON_AGENT_PREFORK_SOCKET"
PYTHON_VARIABLE = "MEGATRON_AGENT_PREFORK_PYTHON"

_INT = struct.Struct("!i")
_MAX_FDS = 250  # the kernel's limit for one message is 253


def open_descriptors() -> list[int]:
    """Descriptors that a child would inherit: 0, 1, 2 and everything marked inheritable."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            if descriptor <= 2 or os.get_inheritable(descriptor):
                found.append(descriptor)
        except OSError:
            continue  # the descriptor of the listing itself
    return sorted(found)[:_MAX_FDS]


def send_request(
    connection: socket.socket, argv: Sequence[str], env: dict[str, str], cwd: str, fds: list[int]
) -> None:
    """Ask for a process; `fds` travel as descriptors, the rest as JSON."""
    payload = json.dumps({"argv": list(argv), "env": env, "cwd": cwd, "fds": fds}).encode()
    socket.send_fds(connection, [_INT.pack(len(payload))], fds)
    connection.sendall(payload)


def receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The request and the received descriptors, or None if the client hung up."""
    head, fds, _, _ = socket.recv_fds(connection, _INT.size, _MAX_FDS)
    if len(head) < _INT.size:
        return None
    payload = _receive(connection, _INT.unpack(head)[0])
    return None if payload is None else (json.loads(payload), list(fds))


def send_int(connection: socket.socket, value: int) -> None:
    """Send one 4-byte integer."""
    connection.sendall(_INT.pack(value))


def receive_int(connection: socket.socket) -> int | None:
    """One integer, or None if the other side hung up."""
    data = _receive(connection, _INT.size)
    return None if data is None else int(_INT.unpack(data)[0])


def _receive(connection: socket.socket, num_bytes: int) -> bytes | None:
    data = b""
    while len(data) < num_bytes:
        chunk = connection.recv(num_bytes - len(data))
        if not chunk:
            return None
        data += chunk
    return data
