"""Nodes that cannot reach each other are named."""

from __future__ import annotations

import socket

import pytest

from megatron_agent.backend.process_check import NodeProbe

pytestmark = pytest.mark.unit


def test_a_probe_reaches_those_that_listen_and_names_those_that_do_not() -> None:
    here, there = NodeProbe("127.0.0.1"), NodeProbe("127.0.0.2")
    assert here.faults([here.address(), there.address()]) == []
    with socket.create_server(("127.0.0.3", 0)) as gone:
        address = gone.getsockname()
    assert there.faults([here.address(), address]) == [
        "127.0.0.2 must reach 127.0.0.3, but it cannot (Connection refused)"
    ]
