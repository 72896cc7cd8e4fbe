"""Addresses: those that the run is told to listen on are free, those it is to reach answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from megatron_agent.config.values import leaf_items
from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import Finding, error
from megatron_agent.doctor.registry import check

RAY_INIT = "ray_kwargs.ray_init"
ADDRESS_KEY = f"{RAY_INIT}._node_ip_address"
TIMEOUT_S = 3.0


@check("ports", "ports that the run asks for are free, and servers that it names answer")
def check_ports(case: RunCase) -> Iterator[Finding]:
    """Ray's own ports and address, a Ray cluster to join, servers of the environment."""
    address = case.values.text(ADDRESS_KEY) or "127.0.0.1"
    fault = binding_fault(address, 0)
    if fault:
        problem = f"must be an address of this machine ({fault}), got {address!r}"
        yield error(ADDRESS_KEY, problem, "Use one of 'ip address', or 127.0.0.2 to stay inside.")
    else:
        for name, port in leaf_items(case.values.mapping(RAY_INIT)):
            is_port = name.rpartition(".")[2].endswith("port") and isinstance(port, int) and port
            if is_port and (fault := binding_fault(address, port)):
                problem = f"must be a free port ({fault}), got {port}"
                yield error(f"{RAY_INIT}.{name}", problem, "Use another, or leave the key out.")
    cluster = os.environ.get("RAY_ADDRESS", "")
    if ":" in cluster and (fault := connection_fault(f"//{cluster.rpartition('//')[2]}")):
        problem = f"must name a Ray cluster that answers ({fault}), got {cluster!r}"
        yield error("RAY_ADDRESS", problem, "Start it with 'ray start --head', or unset it.")
    for name, url in leaf_items(case.values.mapping("env.options")):
        is_url = isinstance(url, str) and url.startswith(("http://", "https://"))
        if is_url and (fault := connection_fault(url)):
            problem = f"must be a server that answers ({fault}), got {url!r}"
            yield error(f"env.options.{name}", problem, "Start it first, or correct the address.")


def binding_fault(address: str, port: int) -> str:
    """Why nobody could listen there; empty when one could."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as fault:
            return fault.strerror or str(fault)
    return ""


def connection_fault(url: str) -> str:
    """Why a connection to the server of ``url`` fails; empty when there is one."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=TIMEOUT_S).close()
    except OSError as fault:
        return fault.strerror or str(fault)
    return ""
