"""``megatron-agent doctor --deep``: the plugin in a run's processes, and the way between nodes.

Starts Ray as a run would (or joins the cluster that ``RAY_ADDRESS`` names), asks, and leaves.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from megatron_agent.backend.launch import prepare_for_verl, set_environment, start_ray
from megatron_agent.backend.preflight import ask_worker, registration_problems
from megatron_agent.config import split_config

ANSWER_TIMEOUT_S = 180.0
"""For a worker that imports verl on a busy machine."""
CONNECT_TIMEOUT_S = 5.0


def process_problems(config: DictConfig, run_dir: Path) -> list[tuple[str, str]]:
    """What is wrong in the driver, in a Ray worker, and between the nodes.

    Args:
        config: the whole configuration, composed and checked.
        run_dir: where the run would write; it is not created.

    Returns:
        Pairs of a place and a problem; empty when all is well.
    """
    set_environment(config, run_dir)
    config, _ = split_config(config)
    trainer_name, device = prepare_for_verl(config), str(config.trainer.device)
    problems = [("driver", problem) for problem in registration_problems(device, trainer_name)]
    import ray

    try:
        start_ray(config)
        answer = ask_worker(device, trainer_name)
        in_worker = ray.get(answer, timeout=ANSWER_TIMEOUT_S)
        problems += [("Ray worker", problem) for problem in in_worker]
        problems += [("network", problem) for problem in unreachable_nodes()]
    except Exception as fault:  # any: whatever Ray raises is the finding
        problems.append(("Ray", f"must start and answer ({type(fault).__name__}: {fault})"))
    finally:
        ray.shutdown()
    return problems


def unreachable_nodes() -> list[str]:
    """Pairs of nodes of the running Ray cluster without a TCP connection, in words.

    Ray itself needs the head only; NCCL and the weight sync need every pair.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    make = ray.remote(num_cpus=0)(NodeProbe)
    node_ids = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    probes = [
        make.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote()
        for node_id in node_ids
    ]
    addresses = ray.get([probe.address.remote() for probe in probes], timeout=ANSWER_TIMEOUT_S)
    faults = ray.get([probe.faults.remote(addresses) for probe in probes], timeout=ANSWER_TIMEOUT_S)
    for probe in probes:
        ray.kill(probe)
    return [fault for faults_of_node in faults for fault in faults_of_node]


class NodeProbe:
    """An actor on one node: has a port that others connect to, and connects to theirs."""

    def __init__(self, host: str | None = None) -> None:
        self._host = host or _node_address()
        # Connections wait in the kernel's queue and are never accepted: nothing is read.
        self._listener = socket.create_server((self._host, 0), backlog=1024)

    def address(self) -> tuple[str, int]:
        """Where it can be reached."""
        return self._host, self._listener.getsockname()[1]

    def faults(self, addresses: list[tuple[str, int]]) -> list[str]:
        """The addresses that cannot be reached from here, in words."""
        return [
            f"{self._host} must reach {host}, but it cannot ({fault})"
            for host, port in addresses
            if (fault := self._fault(host, port))
        ]

    def _fault(self, host: str, port: int) -> str:
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as fault:
            return fault.strerror or str(fault)
        return ""


def _node_address() -> str:
    import ray

    address: Any = ray.util.get_node_ip_address()
    return str(address)
