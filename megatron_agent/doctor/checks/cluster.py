"""What surrounds a run on several machines: the Slurm job it is in, names, and interfaces."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping

from megatron_agent.config.rules.layout import num_server_nodes
from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import DoesNotApply, Finding, error, note, warning
from megatron_agent.doctor.registry import check

MIN_LEFT_S = 15 * 60
"""A job with less time left hardly gets past its start-up."""
MIN_CPUS_PER_GPU = 4
"""A rank, its server and their share of environments."""
TIMEOUT_S = 20
SLURM_COUNTS: Mapping[str, str] = {
    "SLURM_JOB_NUM_NODES": "trainer.nnodes",
    "SLURM_GPUS_ON_NODE": "trainer.n_gpus_per_node",
}


@check("slurm", "the job has the nodes, devices and time that the run asks for")
def check_slurm(case: RunCase) -> Iterator[Finding]:
    """Compare the job that this is in with the configuration; nothing outside of a job."""
    if "SLURM_JOB_ID" not in os.environ:
        raise DoesNotApply("not in a Slurm job")
    for variable, key in SLURM_COUNTS.items():
        has, wants = _number(variable), case.values.integer(key)
        if key == "trainer.nnodes" and wants is not None:
            wants += num_server_nodes(case.values)
        if key.endswith("gpus_per_node") and case.device != "cuda":
            continue
        if has is not None and wants is not None and has < wants:
            problem = f"must be at most what the job has ({variable}={has}), got {wants}"
            yield error(key, problem, "Ask sbatch for more, or use a smaller cluster=... .")
        elif has is not None and wants is not None and has > wants:
            problem = f"uses {wants} of {has} that the job has ({variable})"
            yield warning(key, problem, "Ask sbatch for fewer, or use a larger cluster=... .")
    num_cpus, num_gpus = _number("SLURM_CPUS_ON_NODE"), _number("SLURM_GPUS_ON_NODE")
    if num_cpus and num_gpus and num_cpus < MIN_CPUS_PER_GPU * num_gpus:
        problem = f"should be {MIN_CPUS_PER_GPU} a GPU or more, got {num_cpus} for {num_gpus} GPUs"
        yield warning("CPUs of the job", problem, "Ask for --cpus-per-gpu=8, or --exclusive.")
    end_s = _number("SLURM_JOB_END_TIME")
    if end_s is not None and end_s - time.time() < MIN_LEFT_S:
        minutes = max(0, round((end_s - time.time()) / 60))
        problem = f"should be {MIN_LEFT_S // 60} minutes or more, got {minutes}"
        yield warning("time left of the job", problem, "Start a new job; a run resumes.")


@check("network", "the nodes know each other, and NCCL is told of interfaces that exist")
def check_network(case: RunCase) -> Iterator[Finding]:
    """Interfaces named by variables; host names of a Slurm job; a Ray cluster for several nodes."""
    interfaces = {name for _, name in socket.if_nameindex()}
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        for name in _named_interfaces(os.environ.get(variable, "")):
            if not any(interface.startswith(name) for interface in interfaces):
                known = ", ".join(sorted(interfaces))
                problem = f"must name an interface of this machine ({known}), got {name!r}"
                yield error(variable, problem, "Correct it, or unset it.")
    if (case.values.integer("trainer.nnodes") or 1) <= 1:
        return
    if not os.environ.get("RAY_ADDRESS") and not case.values.get("ray_kwargs.ray_init.address"):
        problem = "must name the head of a Ray cluster when trainer.nnodes is above 1"
        # On a login node there is none yet.
        tell = error if "SLURM_JOB_ID" in os.environ else note
        yield tell("RAY_ADDRESS", problem, "Start Ray on all nodes first, as slurm/ does.")
    unknown = [name for name in job_hosts() if not _resolves(name)]
    if unknown:
        problem = f"must have addresses here, got none for {', '.join(unknown)}"
        yield error("nodes of the job", problem, "Add them to DNS or /etc/hosts on every node.")


def job_hosts() -> list[str]:
    """Host names of the Slurm job that this is in; empty outside of one."""
    nodes, program = os.environ.get("SLURM_JOB_NODELIST"), shutil.which("scontrol")
    if not nodes or program is None:
        return []
    done = subprocess.run(
        [program, "show", "hostnames", nodes],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return done.stdout.split()


def _named_interfaces(value: str) -> list[str]:
    """Prefixes in NCCL's notation: ``eth0,ib``, ``=eth0`` exactly, ``^lo`` all but."""
    if value.startswith("^"):
        return []
    return [name.lstrip("=") for name in value.split(",") if name.lstrip("=")]


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None
