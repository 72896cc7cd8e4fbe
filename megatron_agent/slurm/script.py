"""The sbatch file of one run, as text that a person can read, keep and submit again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from megatron_agent.config.slurm_settings import SlurmSettings
from megatron_agent.slurm.job_settings import (
    export_lines,
    gpus_needed,
    job_variables,
    slurm_settings,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """What `launch` was asked for."""

    overrides: Sequence[str]
    """Hydra overrides, ``trainer.nnodes`` among them."""
    config_name: str
    num_nodes: int
    root: Path
    """The checkout, absolute."""


def render_script(config: DictConfig, request: JobRequest) -> str:
    """The sbatch file.

    Args:
        config: the composed and checked configuration.
        request: what was asked for.

    Returns:
        A bash script; what a user gave is quoted wherever it stands in it.

    Raises:
        ConfigProblemsError: ``cluster.slurm`` cannot be.
    """
    settings = slurm_settings(config)
    command = ["python", "-m", "megatron_agent.train", "--config-name", request.config_name]
    variables = job_variables(config, request.root, request.num_nodes)
    lines = [
        "#!/usr/bin/env bash",
        f"# {config.run.name}: written by `megatron-agent launch`, to be handed to sbatch.",
        *(f"#SBATCH {option}" for option in sbatch_options(config, settings, request)),
        "set -euo pipefail",
        "",
        "# cluster.slurm of the cluster file. What is set in the environment already wins.",
        *export_lines(variables),
        *export_lines(settings.environment),
        "",
        "# shellcheck source=/dev/null",
        'source "$MA_ROOT/slurm/lib/job.sh"',
        "",
        f"run_with_ray {shlex.join(command)} \\",
        *(f"    {shlex.quote(override)} \\" for override in request.overrides[:-1]),
        f"    {shlex.quote(request.overrides[-1])}",
    ]
    return "\n".join(lines) + "\n"


def sbatch_options(config: DictConfig, settings: SlurmSettings, request: JobRequest) -> list[str]:
    """Options for the head of the file, in a fixed order."""
    logs = request.root / settings.logs
    gpus_per_node = settings.gpus_per_node
    if gpus_per_node is None:
        gpus_per_node = gpus_needed(config, request.num_nodes)
    chosen = {
        # One job of a name at a time, with `--dependency=singleton`: the run's folder.
        "job-name": str(config.run.name),
        "nodes": request.num_nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": settings.cpus_per_node,
        "gpus-per-node": gpus_per_node,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "time": settings.time,
        "signal": f"B:USR1@{settings.signal_before_end_s}",
        "open-mode": "append",
        "output": str(logs / "%x-%j.log"),
    }
    options = [f"--{name}={value}" for name, value in chosen.items() if value is not None]
    options += ["--exclusive"] * settings.exclusive
    options.append("--requeue" if settings.requeue else "--no-requeue")
    return [_quoted(option) for option in [*options, *settings.extra_options]]


def _quoted(option: str) -> str:
    """sbatch splits the lines of the head as a shell does, and ends them at a #."""
    return shlex.quote(option) if any(sign in option for sign in " \t'\"\\#") else option
