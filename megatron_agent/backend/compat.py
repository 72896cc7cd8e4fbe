"""Every private name of verl that this package touches, in one place.

verl promises none of these. Each entry says who uses it; ``tests/contract/test_verl_names.py``
looks every one up, so that a new verl version fails there, by name, and not in the middle of a run.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from megatron_agent.errors import HookError

VERL_VERSION = "0.9.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateName:
    """One attribute of verl that we call, override or read."""

    module: str
    attribute: str
    """Dotted path below the module, e.g. ``PPOTrainer._compute_advantage``."""
    used_by: str

    def resolve(self) -> object:
        """The object itself.

        Raises:
            HookError: if the installed verl does not have it.
        """
        try:
            found: object = importlib.import_module(self.module)
            for part in self.attribute.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise HookError(
                f"verl has no {self.module}.{self.attribute}, which {self.used_by} needs. "
                f"This package is tested with verl {VERL_VERSION}: install that version."
            ) from error
        return found


_V1 = "verl.trainer.ppo.v1.trainer_base"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_LOOP = "verl.experimental.agent_loop.agent_loop"

PRIVATE_NAMES: tuple[PrivateName, ...] = (
    PrivateName(module=_V1, attribute="PPOTrainer._build_replay_buffer", used_by="trainer"),
    PrivateName(module=_V1, attribute="PPOTrainer._compute_advantage", used_by="trainer"),
    PrivateName(module=_V1, attribute="PPOTrainer._compute_old_log_prob", used_by="trainer"),
    PrivateName(module=_V1, attribute="PPOTrainer._get_required_batch_multiple", used_by="trainer"),
    PrivateName(module=_V1, attribute="PPOTrainer._val_metrics_update", used_by="trainer"),
    PrivateName(module=_V1, attribute="PPOTrainer._update_actor", used_by="trainer"),
    PrivateName(module=_V1, attribute="PPOTrainer._update_critic", used_by="trainer"),
    PrivateName(module=_V1, attribute="PPOTrainer.fit", used_by="trainer"),
    PrivateName(module=_V1, attribute="PPOTrainer._save_checkpoint", used_by="trainer"),
    PrivateName(module=_V1, attribute="PPOTrainer._load_checkpoint", used_by="trainer"),
    PrivateName(module=_V1, attribute="TRAINER_REGISTRY", used_by="plugin check"),
    *(
        PrivateName(module=_BUFFER, attribute=f"ReplayBuffer.{name}", used_by="group filter")
        for name in (
            "_clear_groups",
            "_dapo_filtered_keys",
            "_evict_terminal_groups",
            "_select_prompt_uids",
            "sample",
        )
    ),
    PrivateName(module=_LOOP, attribute="AgentLoopBase.run", used_by="agent loop"),
    PrivateName(module=_LOOP, attribute="AgentLoopBase.process_multi_modal_info", used_by="vision"),
    PrivateName(module=_LOOP, attribute="_agent_loop_registry", used_by="plugin check"),
    PrivateName(
        module="verl.utils.tokenizer", attribute="get_processor_token_id", used_by="vision"
    ),
    PrivateName(
        module="verl.workers.rollout.utils",
        attribute="get_vision_placeholder_token_ids",
        used_by="vision",
    ),
    PrivateName(
        module="verl.trainer.ppo.v1.agent_loop_tq",
        attribute="AgentLoopManagerTQ.create",
        used_by="launch",
    ),
    PrivateName(
        module="verl.trainer.constants_ppo",
        attribute="get_ppo_ray_runtime_env",
        used_by="launch",
    ),
    PrivateName(module="verl.utils.config", attribute="validate_config", used_by="launch"),
    PrivateName(
        module="verl.workers.engine.base",
        attribute="EngineRegistry._engines",
        used_by="plugin check",
    ),
)
