"""Hops 7-9 on verl's V1 trainers: credit, mini-batches, progress, checkpoints.

One mix-in carries everything and is laid over each of verl's trainers, so that all modes behave
alike. Users write verl's own mode (``trainer.v1.trainer_mode=sync``); the launcher asks for the
registered name (``agent_sync``). verl compares that string with "sync" in many places, so the
mix-in puts the base mode back before verl's constructor reads it.

Credit is one number per row, computed here, where row keys and extra fields can be seen;
``advantage_phase`` spreads it over the response tokens.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
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
from megatron_agent.backend.checkpoints import CheckpointKeeper
from megatron_agent.backend.evaluation_check import check_evaluation
from megatron_agent.backend.group_filter import GroupFilterMixin, filtering
from megatron_agent.backend.names import ESTIMATOR_NAME, TRAINER_PREFIX
from megatron_agent.backend.parity_guard import ParityGuard
from megatron_agent.backend.progress import ProgressBackend
from megatron_agent.backend.stop import StopRequested, StopSwitch
from megatron_agent.backend.verl_fixes import repair_separate_async
from megatron_agent.config import AgentSettings
from megatron_agent.credit import credit_names
from megatron_agent.errors import ConfigError

if TYPE_CHECKING:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer as _VerlTrainer
else:
    _VerlTrainer = object  # verl's trainer comes in by the classes below

logger = logging.getLogger(__name__)

repair_separate_async(trainer_separate_async)


def refuse_pickled_code(path: Path) -> None:
    """Let a file through that holds only tensors and plain values.

    verl reads ``data.pt`` with ``torch.load(weights_only=False)``, which runs whatever code
    somebody put into it; reading it the safe way first makes sure that there is none.

    Raises:
        ConfigError: the file asks for code to be run.
    """
    if not path.exists():
        return
    try:
        torch.load(path, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            "trainer.resume_from_path",
            f"must hold a {path.name} of tensors and plain values ({str(error).splitlines()[0]})",
            str(path),
            "Do not load a checkpoint that you did not write.",
        ) from error


class AgentTrainerMixin(_VerlTrainer):
    """Step-level credit and run-keeping over a verl V1 trainer.

    Mini-batches: ``actor.ppo_mini_batch_size`` counts **task groups**, as in verl, where one prompt
    gives ``rollout.n`` rows. Here a group gives ``rollout.n`` episodes of any length. The rows of a
    mini-batch follow the length of the episodes; the number of optimizer steps per iteration does
    not: it is ``data.train_batch_size / actor.ppo_mini_batch_size * actor.ppo_epochs``.
    """

    base_mode: str

    def __init__(self, config: DictConfig) -> None:
        self.credit_method = str(config.algorithm.adv_estimator)
        self.settings = AgentSettings.from_config(config)
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.base_mode
            if self.credit_method in credit_names():
                config.algorithm.adv_estimator = ESTIMATOR_NAME
        super().__init__(config)
        self.checkpoints = CheckpointKeeper.from_config(config)
        self._unmarked_step: int | None = None
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
        if not filter_groups.enable:
            return replay_buffer
        return filtering(
            replay_buffer,
            num_groups=self._num_groups(),
            max_num_batches=max_num_batches,
            at_bound=self.settings.algorithm.filter_at_bound,
        )

    def on_validate_begin(self) -> None:
        self._add_progress()
        super().on_validate_begin()

    def on_train_begin(self) -> None:
        self._add_progress()
        super().on_train_begin()

    def _add_progress(self) -> None:
        backends = self.logger.logger
        if "progress" not in backends:
            backends["progress"] = ProgressBackend.from_config(
                self.config, resumed_step=self.global_steps, num_steps=self.total_training_steps
            )

    # -- the loop ----------------------------------------------------------------------------------

    def fit(self, agent_loop_manager: Any) -> None:
        """verl's loop; a checkpoint that was written before an error is kept."""
        try:
            super().fit(agent_loop_manager)
        finally:
            self._finish_checkpoint()

    def on_step_begin(self) -> None:
        """Between two steps nothing is in flight: the place to stop."""
        self._finish_checkpoint()
        if StopSwitch.requested():
            self.global_steps -= 1  # verl has counted the step that will not be taken
            if self.global_steps > 0 and not self.checkpoints.is_complete(self.global_steps):
                self._save_checkpoint()
                self._finish_checkpoint()
            raise StopRequested(self.global_steps)
        super().on_step_begin()

    def _val_metrics_update(
        self,
        data_sources: Any,
        sample_uids: Any,
        reward_extra_infos_dict: dict[str, list[Any]],
        *args: Any,
        expected_acc_counts: dict[Any, int] | None = None,
        **kwargs: Any,
    ) -> dict[str, float]:
        """An evaluation's averages, once it is known that every session is in them."""
        check_evaluation(
            reward_extra_infos_dict,
            num_expected=sum((expected_acc_counts or {}).values()),
            max_rate=self.settings.env.max_failure_rate,
        )
        averages: dict[str, float] = super()._val_metrics_update(
            data_sources,
            sample_uids,
            reward_extra_infos_dict,
            *args,
            expected_acc_counts=expected_acc_counts,
            **kwargs,
        )
        return averages

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
        data = tq.kv_batch_get(
            keys=batch.keys,
            partition_id=batch.partition_id,
            select_fields=["extra_fields"] + ["values"] * self.use_critic,
        )
        rows = [dict(getattr(row, "data", row)) for row in list(data["extra_fields"])]
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
            num_groups=self._num_groups(),
            removed=self._removed_groups(),
        )
        metrics.update(credit.metrics)
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

    # -- checkpoints -------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """verl's checkpoint, without the mark that makes it one.

        verl saves, evaluates, and writes the step's metrics, in this order. The mark comes after
        all three (:meth:`_finish_checkpoint`), so that a kill in between loses no evaluation and
        no line of metrics: the step is taken again.
        """
        self.checkpoints.begin(self.global_steps)
        super()._save_checkpoint()
        self._unmarked_step = self.global_steps

    def _finish_checkpoint(self) -> None:
        """Mark the checkpoint that was written last, and remove the oldest beyond the limit."""
        if self._unmarked_step is not None:
            self.checkpoints.mark_complete(self._unmarked_step)
            self._unmarked_step = None
            self.checkpoints.prune()

    def _load_checkpoint(self) -> None:
        """Resume from the newest complete checkpoint, whatever verl's tracker file says."""
        trainer = self.config.trainer
        chosen = self.checkpoints.choose(trainer.resume_mode, trainer.resume_from_path)
        with open_dict(self.config):
            trainer.resume_mode = "disable" if chosen is None else "resume_path"
            trainer.resume_from_path = None if chosen is None else str(chosen)
        if chosen is not None:
            refuse_pickled_code(chosen / "data.pt")
        super()._load_checkpoint()
        if self.global_steps > 0 and not trainer.get("val_only", False):
            with open_dict(self.config):
                trainer.val_before_train = False  # the run has done that where it began


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
