"""Keys below ``cluster.slurm``: what a site is like. The one thing to edit for a new site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megatron_agent.config.fields import read_settings, ruled
from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues

SLURM_KEY = "cluster.slurm"

LONGEST_SCRATCH = 30
"""Characters. Ray puts sockets 64 characters deep below ``<scratch>/ma-<job>``, and the path of a
socket may have 107."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmSettings:
    """Keys below ``cluster.slurm``. Null leaves a choice to Slurm, or to Ray."""

    partition: str | None
    account: str | None
    qos: str | None
    time: str = ruled(
        remedy='Write it in quotes, e.g. "4:00:00" or "90": without them YAML reads 4:00:00 as the '
        "number 14400."
    )
    """Time limit of a job, in one of Slurm's forms, e.g. ``4:00:00``. Text alone: of a number
    nobody can say whether minutes were written or a time with colons, which YAML 1.1 reads to base
    60."""
    signal_before_end_s: int = ruled(at_least=60)
    """Seconds before the time limit at which the job is told to stop: longer than the slowest
    step and a checkpoint take together."""
    gpus_per_node: int | None = ruled(at_least=1)
    """GPUs to ask for on a node; null: as many as the trainer and servers of their own need there,
    and none on a CPU."""
    cpus_per_node: int | None = ruled(at_least=1)
    exclusive: bool
    """Whether the job has its nodes for itself."""
    extra_options: list[str]
    """More options of sbatch, e.g. ``["--constraint=h100"]``."""

    interface: str | None
    """Network interface of Ray, NCCL and gloo; by default the one that the node's name leads to."""
    scratch: str
    """A folder on the local disk of every node, with a short path."""
    logs: str
    """A folder that all nodes can write to: output and logs of the launch."""
    modules: list[str]
    """Environment modules to load."""
    environment: Mapping[str, object]
    """Variables to set, to texts or numbers."""
    venv: str | None
    """The virtual environment, at the same path on every node; by default ``.venv`` in the
    checkout."""

    container: str = ruled(one_of=("none", "pyxis", "apptainer"))
    container_image: str | None
    container_mounts: list[str]
    """More mounts, ``host:container``; the checkout, logs and scratch are always mounted."""
    container_options: list[str]
    """More options of the container's own command, e.g. ``["--nv"]`` for Apptainer."""

    ray_auth: str = ruled(one_of=("token", "disabled"))
    """Whether Ray asks for the job's secret; else everybody who reaches a node commands it."""
    ray_cpus: int | None = ruled(at_least=1)
    """CPUs that Ray offers on a node; by default those that Slurm allotted."""
    dashboard: bool
    """Ray's dashboard, on the loopback address of the head."""
    head_deadline_s: int = ruled(at_least=1)
    nodes_deadline_s: int = ruled(at_least=1)
    """Seconds until all nodes must have joined Ray."""
    requeue: bool
    """Whether the job goes back into the queue when it was stopped, or met a failure."""
    max_failures: int = ruled(at_least=0)
    """Failures after which it does not; being stopped is none."""


def read_slurm_settings(values: ConfigValues, findings: Findings) -> SlurmSettings | None:
    """Read ``cluster.slurm``; None when something in it was reported."""
    return read_settings(SlurmSettings, values.get(SLURM_KEY), SLURM_KEY, findings)
