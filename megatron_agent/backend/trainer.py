"""Hops 7-9 on verl's V1 trainers: credit and mini-batches; ``run_keeping`` has the rest.

One mix-in carries both and is laid over each of verl's trainers, so that all modes behave
alike. Users write verl's own mode (``trainer.v1.trainer_mode=sync``); the launcher asks for the
registered name (``agent_sync``). verl compares that string with "sync" in many places, so the
mix-in puts the base mode back before verl's constructor reads it.

Credit is one number per row, computed here, where row keys and extra fields can be seen;
``advantage_phase`` spreads it over the response tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from megatron_agent.backend.advantage_phase import (
    credit_for_estimator,
    needs_verls_phase,
    num_response_tokens,
    write_credit,
)
from megatron_agent.backend.batch_credit import credit_batch
from megatron_agent.backend.buffer_watch import watched
from megatron_agent.backend.group_filter import GroupFilterMixin, filtering
from megatron_agent.backend.names import ESTIMATOR_NAME, TRAINER_PREFIX
from megatron_agent.backend.parity_guard import ParityGuard
from megatron_agent.backend.run_keeping import RunKeepingMixin
from megatron_agent.backend.verl_fixes import repair_separate_async
from megatron_agent.config import AgentSettings
from megatron_agent.credit import credit_names, credit_needs

repair_separate_async(trainer_separate_async)

FIELD_OF_COLUMN = {"log_prob": "old_log_probs", "entropy": "entropy"}
"""Where TransferQueue has what a credit method may ask for (`register_credit`)."""


class AgentTrainerMixin(RunKeepingMixin):
    """Step-level credit over a verl V1 trainer, whose run is kept by :class:`RunKeepingMixin`.

    Mini-batches: ``actor.ppo_mini_batch_size`` counts **task groups**, as in verl, where one prompt
    gives ``rollout.n`` rows. Here a group gives ``rollout.n`` episodes of any length. The rows of a
    mini-batch follow the length of the episodes; the number of optimizer steps per iteration does
    not: it is ``data.train_batch_size / actor.ppo_mini_batch_size * actor.ppo_epochs``.
    """

    def __init__(self, config: DictConfig) -> None:
        self.credit_method = str(config.algorithm.adv_estimator)
        self.settings = AgentSettings.from_config(config)
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.base_mode
            if self.credit_method in credit_names():
                config.algorithm.adv_estimator = ESTIMATOR_NAME
        super().__init__(config)
        self.parity = ParityGuard(max_difference=config.trainer.get("max_rollout_probs_diff", None))

    # -- set-up ------------------------------------------------------------------------------------

    def _build_replay_buffer(self) -> Any:
        """verl polls for finished episodes every 2 s, which in a fast run is most of a step."""
        filter_groups = self.config.algorithm.filter_groups
        max_num_batches = int(filter_groups.max_num_gen_batches)
        filter_groups.max_num_gen_batches = 0  # verl would warn that it has no bound; ours has
        replay_buffer = super()._build_replay_buffer()
        filter_groups.max_num_gen_batches = max_num_batches
        replay_buffer.poll_interval = float(self.config.trainer.get("poll_interval_s", 2.0))
        if filter_groups.enable:
            replay_buffer = filtering(
                replay_buffer,
                num_groups=self._num_groups(),
                max_num_batches=max_num_batches,
                at_bound=self.settings.algorithm.filter_at_bound,
                normalize_by_length=self.settings.algorithm.episode_reward.normalize_by_length,
            )
        return watched(
            replay_buffer,
            on_wait=self._set_aside_when_asked_to_stop,
            # Groups that dynamic sampling takes away are handed over with their rows.
            on_evict=None if filter_groups.enable else self._note_evicted,
        )

    def _num_groups(self) -> int:
        """Task groups of one update; ``separate_async`` makes several updates per iteration."""
        return int(self.config.data.train_batch_size) // int(self.parameter_sync_step)

    def _num_mini_batches(self) -> int:
        mini_batch_size = int(self.config.actor_rollout_ref.actor.ppo_mini_batch_size)
        return max(1, self._num_groups() // mini_batch_size)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows must split evenly over mini-batches and data-parallel ranks, no more: verl's own
        multiple (``ppo_mini_batch_size * rollout.n`` rows) can pad a batch of short episodes to
        twice its size.
        """
        return dp_size * self._num_mini_batches()

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics)
        self.parity.check(metrics, step=self.global_steps)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Credit by the method in ``algorithm.adv_estimator``; verl's own estimators for other
        names.
        """
        if self.config.algorithm.adv_estimator != ESTIMATOR_NAME:
            return super()._compute_advantage(batch, metrics)
        wanted = credit_needs(self.credit_method)
        fields = [name for column, name in FIELD_OF_COLUMN.items() if column in wanted]
        data = tq.kv_batch_get(
            keys=batch.keys,
            partition_id=batch.partition_id,
            select_fields=["extra_fields", *fields, *["values"] * self.use_critic],
        )
        rows = [dict(getattr(row, "data", row)) for row in list(data["extra_fields"])]
        removed = self._removed_groups()
        is_padding_N = np.array([bool(tag.get("is_padding", False)) for tag in batch.tags])
        num_tokens_N = num_response_tokens(batch)
        # A session without steps is one row that is there to be counted, not to be trained on.
        is_in_loss_N = ~is_padding_N & np.array([row["episode_length"] > 0 for row in rows])
        credit = credit_batch(
            self.settings,
            method=self.credit_method,
            keys=list(batch.keys),
            rows=rows,
            is_padding_N=is_padding_N,
            response_length_N=num_tokens_N * is_in_loss_N,
            # A row's state is what the prompt shows; the critic has read it all when it predicts
            # the first response token.
            value_N=np.array([float(value_L[0]) for value_L in data["values"]])
            if self.use_critic
            else None,
            log_prob_N=_per_row(data, "old_log_probs", torch.sum),
            entropy_N=_per_row(data, "entropy", torch.mean),
            num_groups=self._num_groups(),
            removed=removed,
        )
        metrics.update(credit.metrics)
        self.ledger.note_sessions(credit.sessions)
        self._removed_groups_of_step |= removed
        num_epochs = int(self.config.actor_rollout_ref.actor.ppo_epochs)
        # verl averages this over the updates of an iteration.
        num_updates = self._num_mini_batches() * num_epochs * int(self.parameter_sync_step)
        metrics["train/optimizer_steps"] = num_updates
        if not needs_verls_phase(self.config.algorithm):
            return write_credit(batch, credit, num_tokens_N, is_in_loss_N)
        with credit_for_estimator(credit):
            return super()._compute_advantage(batch, metrics)

    def _removed_groups(self) -> dict[str, list[Any]]:
        """Groups of this step that dynamic sampling played and did not keep."""
        buffer = self.replay_buffer
        return buffer.take_removed() if isinstance(buffer, GroupFilterMixin) else {}

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        with self._mini_batch_rows("actor_rollout_ref.actor", batch):
            return super()._update_actor(batch, metrics)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        with self._mini_batch_rows("critic", batch):
            return super()._update_critic(batch, metrics)

    @contextmanager
    def _mini_batch_rows(self, section: str, batch: KVBatchMeta) -> Iterator[None]:
        """Let verl cut ``batch`` into :meth:`_num_mini_batches` equal parts.

        verl reads ``<section>.ppo_mini_batch_size * rollout.n`` rows; for the length of the call
        both keys hold values whose product is the number of rows wanted. The worker processes have
        their own copy of the configuration and get the product with the batch.
        """
        node: Any = self.config
        for part in section.split("."):
            node = node[part]
        rollout = self.config.actor_rollout_ref.rollout
        num_rows = len(batch.keys) // self._num_mini_batches()
        before = (node.ppo_mini_batch_size, rollout.n)
        try:
            with open_dict(self.config):
                node.ppo_mini_batch_size, rollout.n = num_rows, 1
            yield
        finally:
            with open_dict(self.config):
                node.ppo_mini_batch_size, rollout.n = before


def _per_row(data: TensorDict, name: str, reduce: Callable[[torch.Tensor], Any]) -> Any:
    """One number for each row's response tokens; None where the field was not fetched."""
    if name not in data:
        return None
    return np.array([float(reduce(value_L)) for value_L in data[name]])


@register_trainer(TRAINER_PREFIX + "sync")
class AgentTrainerSync(AgentTrainerMixin, PPOTrainerSync):
    """Rollout and update take turns on the same devices."""

    base_mode = "sync"


@register_trainer(TRAINER_PREFIX + "colocate_async")
class AgentTrainerColocateAsync(AgentTrainerMixin, PPOTrainerColocateAsync):
    """Rollout runs ahead on the same devices, bounded by the off-policy threshold."""

    base_mode = "colocate_async"


@register_trainer(TRAINER_PREFIX + "separate_async")
class AgentTrainerSeparateAsync(AgentTrainerMixin, PPOTrainerSeparateAsync):
    """Rollout has devices of its own."""

    base_mode = "separate_async"
