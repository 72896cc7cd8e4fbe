"""The one entry to all checks: light, without verl, Ray or torch, done within the first seconds."""

from __future__ import annotations

from omegaconf import DictConfig

from megatron_agent.config.findings import Findings
from megatron_agent.config.rules.algorithm import (
    check_algorithm,
    check_credit,
    check_group_filter,
)
from megatron_agent.config.rules.batches import check_batches
from megatron_agent.config.rules.combinations import check_combinations
from megatron_agent.config.rules.cpu import check_cpu
from megatron_agent.config.rules.environment import check_environment
from megatron_agent.config.rules.images import check_images
from megatron_agent.config.rules.layout import check_ranks
from megatron_agent.config.rules.model_folder import check_model
from megatron_agent.config.rules.planning import check_planning
from megatron_agent.config.rules.reward import check_overlong_penalty, check_reward
from megatron_agent.config.rules.sampling import check_sampling
from megatron_agent.config.rules.slurm import check_slurm
from megatron_agent.config.rules.tasks import check_tasks
from megatron_agent.config.rules.trainer import check_trainer
from megatron_agent.config.settings import AgentSettings, read_agent_settings
from megatron_agent.config.tree_check import check_tree
from megatron_agent.config.values import ConfigValues

RULES = (
    check_algorithm,
    check_group_filter,
    check_batches,
    check_ranks,
    check_cpu,
    check_combinations,
    check_planning,
    check_model,
    check_environment,
    check_images,
    check_tasks,
    check_trainer,
    check_sampling,
    check_reward,
    check_overlong_penalty,
    check_slurm,
)


def check_config(config: DictConfig, findings: Findings) -> AgentSettings | None:
    """Record all that is wrong with ``config``, as `compose_config` returned it.

    Args:
        config: the composed configuration.
        findings: receives problems and warnings.

    Returns:
        Our keys, typed; None when one of them was reported.
    """
    return check_values(ConfigValues.from_config(config), findings)


def check_values(values: ConfigValues, findings: Findings) -> AgentSettings | None:
    """`check_config` on plain values."""
    check_tree(values, findings)
    settings = read_agent_settings(values, findings)
    for rule in RULES:
        rule(values, findings)
    if settings is not None:
        check_credit(settings, findings)
    return settings


def validate_config(config: DictConfig) -> AgentSettings:
    """Check ``config``, log what is odd, raise on what cannot work.

    Raises:
        ConfigProblemsError: with every problem found.

    Example:
        >>> validate_config(compose_config(["algorithm.gamma=-1"]))  # doctest: +SKIP
        ConfigProblemsError: algorithm.gamma must be in [0, 1], got -1. Use 0.95.
    """
    findings = Findings()
    settings = check_config(config, findings)
    findings.raise_if_any()
    findings.log_warnings()
    assert settings is not None
    return settings
