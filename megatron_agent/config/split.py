"""Parts a configuration into what verl accepts and our typed settings."""

from __future__ import annotations

from dataclasses import asdict

from omegaconf import DictConfig, OmegaConf

from megatron_agent.config.settings import ACTOR_KEY, PENALTY_KEY, PENALTY_KEYS, AgentSettings


def split_config(config: DictConfig) -> tuple[DictConfig, AgentSettings]:
    """The configuration for verl, and our settings.

    verl keeps its root and ``algorithm`` as plain mappings, so ``env``, ``run`` and
    ``algorithm.gigpo`` travel where users write them. It turns ``actor_rollout_ref.actor`` into a
    dataclass that rejects the penalty keys; they move to
    ``algorithm.invalid_action_penalty.{enabled,coef,mode,reach}``.
    `AgentSettings.from_config` reads either form, in any process.

    Args:
        config: as `compose_config` returned it; left as it is.

    Returns:
        A copy that verl accepts, and our settings.

    Raises:
        ConfigProblemsError: one of our keys is missing, unknown, of a wrong type or out of range.
    """
    settings = AgentSettings.from_config(config)
    verl_config = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    assert isinstance(verl_config, DictConfig)
    actor = OmegaConf.select(verl_config, ACTOR_KEY)
    for key in PENALTY_KEYS:
        actor.pop(key, None)
    OmegaConf.update(verl_config, PENALTY_KEY, asdict(settings.invalid_action_penalty))
    OmegaConf.set_struct(verl_config, True)
    return verl_config, settings
