"""The batch shell's variables, from ``cluster.slurm``.

``slurm/lib/settings.sh`` lists them with their meaning. `launch` writes them into the sbatch file;
a plain ``sbatch slurm/train_gigpo.sbatch`` asks for them inside the job::

    python -m megatron_agent.slurm.job_settings experiment=frozenlake_cpu
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

from megatron_agent.config import Findings, compose_config
from megatron_agent.config.overrides import DEFAULT_ROOT
from megatron_agent.config.rules.layout import gpu_pools, gpus_on_each_node
from megatron_agent.config.rules.slurm import check_slurm
from megatron_agent.config.slurm_settings import SlurmSettings, read_slurm_settings
from megatron_agent.config.values import ConfigValues
from megatron_agent.errors import MegatronAgentError


def slurm_settings(config: DictConfig) -> SlurmSettings:
    """``cluster.slurm``, typed.

    Raises:
        ConfigProblemsError: something in it cannot be.
    """
    findings, values = Findings(), ConfigValues.from_config(config)
    check_slurm(values, findings)
    findings.raise_if_any()
    settings = read_slurm_settings(values, findings)
    assert settings is not None
    return settings


def gpus_needed(config: DictConfig, num_nodes: int) -> int | None:
    """GPUs that the run needs on each of a job's nodes, the servers' own of mode separate_async
    among them; None on a CPU, where they are made up.
    """
    if str(config.trainer.device) == "cpu":
        return None
    return gpus_on_each_node(gpu_pools(ConfigValues.from_config(config)), num_nodes)


def job_variables(config: DictConfig, root: Path, num_nodes: int) -> dict[str, str]:
    """What the batch shell must know, without what has its default there.

    Args:
        config: the composed configuration.
        root: the checkout.
        num_nodes: nodes of the job, the servers' own among them.

    Raises:
        ConfigProblemsError: ``cluster.slurm`` cannot be.

    Example:
        >>> root = Path("/home/me/megatron_agent")
        >>> job_variables(config, root, 2)["MA_SCRATCH"]  # doctest: +SKIP
        '/tmp'
    """
    settings = slurm_settings(config)
    ray_init = config.ray_kwargs.ray_init
    candidates: Mapping[str, object] = {
        "MA_ROOT": root,
        "MA_VENV": root / settings.venv if settings.venv else None,
        "MA_CONTAINER": settings.container,
        "MA_CONTAINER_IMAGE": settings.container_image,
        "MA_CONTAINER_MOUNTS": ",".join(settings.container_mounts),
        "MA_CONTAINER_OPTIONS": " ".join(settings.container_options),
        "MA_MODULES": " ".join(settings.modules),
        "MA_INTERFACE": settings.interface,
        "MA_SCRATCH": settings.scratch,
        "MA_LOGS": root / settings.logs,
        "MA_NUM_CPUS": settings.ray_cpus,
        # Devices that are made up; real ones are Slurm's to count.
        "MA_NUM_GPUS": ray_init.get("num_gpus", None),
        "MA_GPUS_NEEDED": gpus_needed(config, num_nodes),
        "MA_OBJECT_STORE_BYTES": ray_init.get("object_store_memory", None),
        "MA_RAY_AUTH": settings.ray_auth,
        "MA_DASHBOARD": settings.dashboard,
        "MA_PREFORK": bool(config.cluster.get("prefork", False)),
        "MA_HEAD_DEADLINE_S": settings.head_deadline_s,
        "MA_NODES_DEADLINE_S": settings.nodes_deadline_s,
        "MA_REQUEUE": settings.requeue,
        "MA_MAX_FAILURES": settings.max_failures,
    }
    return {name: _text(value) for name, value in candidates.items() if value not in (None, "")}


def export_lines(variables: Mapping[str, object]) -> list[str]:
    """Lines of shell that set ``variables``, unless they are set already.

    Example:
        >>> export_lines({"MA_MODULES": "cuda gcc"})
        ["export MA_MODULES=${MA_MODULES-'cuda gcc'}"]
    """
    return [
        f"export {name}=${{{name}-{shlex.quote(_text(value))}}}"
        for name, value in variables.items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lines for the overrides given; a mistake costs the job, so it is told at length."""
    overrides = list(sys.argv[1:] if argv is None else argv)
    try:
        config = compose_config(overrides, config_name=DEFAULT_ROOT)
        # The batch shell has given the trainer all of the job's nodes.
        num_nodes = ConfigValues.from_config(config).integer("trainer.nnodes") or 1
        lines = export_lines(job_variables(config, Path.cwd(), num_nodes))
        lines += export_lines(slurm_settings(config).environment)
    except MegatronAgentError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
