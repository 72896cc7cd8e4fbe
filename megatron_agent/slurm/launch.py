"""What ``megatron-agent launch EXPERIMENT --nodes N [--dry-run] [key=value ...]`` does.

Everything that can be wrong is looked for here, on the login node, in a second or two, and not on
eight nodes after a night in the queue. What this machine alone lacks is only said: the nodes may
have it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from megatron_agent.config import Findings
from megatron_agent.config.overrides import DEFAULT_ROOT
from megatron_agent.config.rules.layout import SERVER_NODES_KEY, num_server_nodes
from megatron_agent.config.values import ConfigValues
from megatron_agent.errors import ConfigError
from megatron_agent.slurm.job_settings import slurm_settings
from megatron_agent.slurm.script import JobRequest, render_script
from megatron_agent.slurm.submit import SubmitError, check_syntax, submit
from megatron_agent.train import checked_config

logger = logging.getLogger(__name__)

NODES_KEY = "trainer.nnodes"
DEFAULT_NODES = 1
"""verl's: a configuration that says so names no number."""
EXPERIMENTS = "configs/experiment/"

PREFLIGHT = "megatron_agent.plan.before_launch"
"""A module with ``check_before_launch(config, findings)``, asked when it is there."""


def launch(
    experiment: str,
    overrides: Sequence[str],
    *,
    num_nodes: int,
    config_name: str = DEFAULT_ROOT,
    num_jobs: int = 1,
    dry_run: bool = False,
) -> tuple[str, list[str]]:
    """Check a run, write its sbatch file, and submit it.

    Args:
        experiment: a file of ``configs/experiment/``, by name or by path.
        overrides: Hydra overrides.
        num_nodes: nodes of the job, the servers' own of mode separate_async among them; the others
            become ``trainer.nnodes``.
        config_name: root below ``configs/``.
        num_jobs: jobs of the same name that start one after another's end, for sites without
            requeueing; each goes on where the one before stopped.
        dry_run: submit nothing.

    Returns:
        The script, and the numbers of the jobs.

    Raises:
        ConfigProblemsError: the configuration cannot work, or no node is left for the trainer.
        ConfigError: a number of nodes or jobs below 1, or no checkout around this package.
        SubmitError: sbatch is missing or refused the job.
    """
    for option, number in (("--nodes", num_nodes), ("--chain", num_jobs)):
        if number < 1:
            raise ConfigError(option, "must be >= 1", number, "Use 1.")
    root = checkout_root()
    lines = [f"experiment={experiment_name(experiment)}", *overrides]
    is_named = any(line.startswith(f"{NODES_KEY}=") for line in lines)

    def give_nodes(config: DictConfig) -> None:
        left = trainer_nodes(ConfigValues.from_config(config), num_nodes, is_named=is_named)
        OmegaConf.update(config, NODES_KEY, left)

    with contextlib.chdir(root):  # where the job will look for relative paths
        config, _ = checked_config(
            lines, config_name=config_name, runs_here=False, amend=give_nodes
        )
        _ask_preflight(config)
    lines.append(f"{NODES_KEY}={config.trainer.nnodes}")
    request = JobRequest(overrides=lines, config_name=config_name, num_nodes=num_nodes, root=root)
    script = render_script(config, request)
    check_syntax(script)
    if dry_run:
        return script, []
    # Slurm fails a job whose output file cannot be opened, with no word to anybody.
    logs = root / slurm_settings(config).logs
    try:
        logs.mkdir(parents=True, exist_ok=True)
        kept = logs / f"{config.run.name}.sbatch"
        kept.unlink(missing_ok=True)
        kept.touch(mode=0o600)  # a site's environment may hold keys
        kept.write_text(script, encoding="utf-8")
    except OSError as error:
        rule = f"must be a folder that can be written to ({error.strerror})"
        raise ConfigError("cluster.slurm.logs", rule, str(logs), "Name another.") from error
    options = ["--dependency=singleton"] if num_jobs > 1 else []
    return script, _submit_all(script, options, num_jobs)


def _submit_all(script: str, options: Sequence[str], num_jobs: int) -> list[str]:
    """Raises SubmitError, which names what is in the queue by then."""
    jobs: list[str] = []
    try:
        for _ in range(num_jobs):
            jobs.append(submit(script, options))
    except SubmitError as error:
        if not jobs:
            raise
        raise SubmitError(
            f"{error}\n{len(jobs)} of {num_jobs} jobs are in the queue and stay there; to take "
            f"them back: scancel {' '.join(jobs)}"
        ) from error
    return jobs


def trainer_nodes(values: ConfigValues, num_nodes: int, *, is_named: bool = False) -> int:
    """The trainer's part of a job's nodes. A configuration that names another number is told so.

    Args:
        values: the configuration.
        num_nodes: nodes of the job.
        is_named: whether the command line names a number.

    Raises:
        ConfigError: the servers' own nodes leave none.
    """
    num_servers = num_server_nodes(values)
    left = num_nodes - num_servers
    if left < 1:
        rule = f"must be above {SERVER_NODES_KEY} ({num_servers}) in mode separate_async"
        remedy = f"Use {num_servers + 1}, or more: the trainer has the nodes that are left."
        raise ConfigError("--nodes", rule, num_nodes, remedy)
    named = values.get(NODES_KEY)
    if named != left and (is_named or named != DEFAULT_NODES):
        of_servers = f" and {num_servers} of servers" if num_servers else ""
        logger.warning(
            "--nodes %d makes %s %d%s; the %s of the configuration does not count.",
            num_nodes, NODES_KEY, left, of_servers, named,
        )  # fmt: skip
    return left


def experiment_name(text: str) -> str:
    """The name of an experiment, given by name or by path.

    Example:
        >>> experiment_name("configs/experiment/frozenlake_cpu.yaml")
        'frozenlake_cpu'
    """
    path = text.removeprefix("experiment=")
    if EXPERIMENTS in path:
        path = path[path.index(EXPERIMENTS) + len(EXPERIMENTS) :]
    return path.removesuffix(".yaml")


def checkout_root() -> Path:
    """The checkout that this package lies in: the job's scripts are beside it.

    Raises:
        ConfigError: the package was installed without its scripts.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "slurm" / "lib" / "job.sh").is_file():
        rule = "must be a checkout with a slurm/ folder"
        raise ConfigError("launch", rule, str(root), "Run megatron-agent of a checkout's .venv.")
    return root


def _ask_preflight(config: DictConfig) -> None:
    """Let the planner object, where it is installed: a layout that does not fit into memory is
    known before the job stands in a queue.
    """
    if importlib.util.find_spec(PREFLIGHT) is None:
        return
    check: Callable[[DictConfig, Findings], None] = importlib.import_module(
        PREFLIGHT
    ).check_before_launch
    findings = Findings()
    check(config, findings)
    findings.raise_if_any()
    findings.log_warnings()
