"""Start a training run: ``python -m megatron_agent.train [--config-name ROOT] key=value ...``.

In this order, so that mistakes cost seconds: compose, check, open the run folder, make the task
lists; only then are verl, Ray and torch imported and the run launched.
"""

from __future__ import annotations

from megatron_agent.backend.stop import StopSwitch

if __name__ == "__main__":
    # The imports below take seconds, and SIGUSR1 would kill the process until somebody listens.
    StopSwitch.remember()

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig

from megatron_agent.config import AgentSettings, Findings, check_config, compose_config
from megatron_agent.config.overrides import DEFAULT_ROOT
from megatron_agent.config.rules.tasks import FILE_KEYS, generated_file
from megatron_agent.config.values import ConfigValues
from megatron_agent.provenance import optional_packages_line
from megatron_agent.run_folder import prepare_run

logger = logging.getLogger(__name__)


def train(
    overrides: Sequence[str], *, config_name: str = DEFAULT_ROOT, argv: Sequence[str] = ()
) -> int:
    """Check a configuration and run it.

    Args:
        overrides: Hydra overrides, e.g. ``["experiment=demo", "algorithm.gamma=0.9"]``.
        config_name: root below ``configs/``.
        argv: the command line as typed, for ``run.json``.

    Returns:
        Exit code of the run: 0 when it reached its end.

    Raises:
        ConfigProblemsError: the configuration cannot work, or the run folder holds another run.
        TaskError: the task lists cannot be made.
    """
    config, settings = checked_config(overrides, config_name=config_name)
    run = prepare_run(Path(settings.run.dir), config, argv)
    logger.info(optional_packages_line())
    logger.info("Run %s, attempt %d, in %s.", settings.run.name, run.attempt, settings.run.dir)
    make_missing_tasks(config, settings)

    # The rim: everything heavy is behind this import.
    from megatron_agent.backend import launch

    return launch.run(config, run.path)


def checked_config(
    overrides: Sequence[str],
    *,
    config_name: str = DEFAULT_ROOT,
    runs_here: bool = True,
    amend: Callable[[DictConfig], None] | None = None,
) -> tuple[DictConfig, AgentSettings]:
    """Compose and check; all problems of the command line and of the values come in one message.

    Args:
        overrides: Hydra overrides.
        config_name: root below ``configs/``.
        runs_here: False where another machine will run: what this one lacks is a warning then.
        amend: as of `compose_config`.

    Raises:
        ConfigProblemsError: with every problem found.
    """
    findings = Findings(runs_here=runs_here)
    config = compose_config(overrides, config_name=config_name, findings=findings, amend=amend)
    settings = check_config(config, findings)
    findings.raise_if_any()
    findings.log_warnings()
    assert settings is not None
    return config, settings


def make_missing_tasks(config: DictConfig, settings: AgentSettings) -> None:
    """Generate the task lists below the run folder, unless they are there or the user brings
    others.

    Raises:
        TaskError: the environment cannot give as many different tasks.
    """
    values = ConfigValues.from_config(config)
    missing = {
        split: path
        for key, split in FILE_KEYS.items()
        if (path := generated_file(values, key)) is not None and not path.is_file()
    }
    if not missing:
        return
    from megatron_agent.tasks import generate_tasks, write_tasks

    env = settings.env
    tasks = generate_tasks(
        env.env_name,
        env.tasks.num_train,
        env.tasks.num_eval,
        env.tasks.seed,
        env.options,
        names={name: f"env.tasks.{name}" for name in ("num_train", "num_eval", "seed")},
    )
    for split, path in missing.items():
        chosen = [task for task in tasks if task.split == split]
        write_tasks(path, chosen)
        logger.info("Wrote %d %s tasks to %s.", len(chosen), split, path)


if __name__ == "__main__":
    from megatron_agent.cli import main

    raise SystemExit(main(["train", *sys.argv[1:]]))
