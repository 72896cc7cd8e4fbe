"""Keeping a run: stop on request, the prompt ledger, checkpoints that are whole, progress.

What a trainer of ours does besides learning. Laid over verl's trainer as a mix-in, below credit.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta

from megatron_agent.backend.checkpoints import CheckpointKeeper
from megatron_agent.backend.evaluation_check import check_evaluation
from megatron_agent.backend.group_filter import TRAIN_PARTITION
from megatron_agent.backend.progress import ProgressBackend, metrics_file
from megatron_agent.backend.run_ledger import RunLedger
from megatron_agent.backend.step_metrics import Owed, keep_metrics
from megatron_agent.backend.stop import StopRequested, StopSwitch
from megatron_agent.config import AgentSettings
from megatron_agent.errors import ConfigError

if TYPE_CHECKING:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer as _VerlTrainer
else:
    _VerlTrainer = object  # verl's trainer comes in by the classes of trainer.py

logger = logging.getLogger(__name__)

EVALUATION_PARTITION = "val"
"""Where verl's agent loop puts the episodes of an evaluation."""


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


def _forget_evaluation() -> None:
    """Clear the episodes of an evaluation that was under way when TransferQueue was saved."""
    keys = list((tq.kv_list(EVALUATION_PARTITION) or {}).get(EVALUATION_PARTITION, {}))
    if keys:
        tq.kv_clear(keys=keys, partition_id=EVALUATION_PARTITION)


class RunKeepingMixin(_VerlTrainer):
    """Everything about a run that must survive its end, over a verl V1 trainer."""

    base_mode: str
    settings: AgentSettings
    train_dataloader: Any

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        self.checkpoints = CheckpointKeeper.from_config(config)
        self._resumed_step = 0
        self._owed = Owed()
        self._last_metrics: tuple[int, dict[str, Any], dict[str, float]] = (0, {}, {})
        self.ledger = RunLedger(Path(str(config.run.dir)), mode=self.base_mode)
        self._removed_groups_of_step: dict[str, list[Any]] = {}
        self._data_state_before_step: dict[str, Any] | None = None

    def on_validate_begin(self) -> None:
        self._add_progress()
        super().on_validate_begin()

    def on_train_begin(self) -> None:
        self._add_progress()
        batch_size = self.config.data.get("gen_batch_size") or self.config.data.train_batch_size
        self.ledger.begin_attempt(
            resumed_step=self._resumed_step,
            tasks_per_epoch=len(self.train_dataloader) * int(batch_size),
        )
        if self._owed.metrics is not None:
            # After the evaluation that is owed: a run that ends in it still owes both.
            self.logger.log(data=self._owed.metrics, step=self._resumed_step)
        if self._resumed_step < self.total_training_steps:
            super().on_train_begin()  # hands out tasks, of which a finished run needs none

    def _submit_batch_to_rollout(self, batch: Any) -> int:
        tasks = [str(dict(info)["task_id"]) for info in batch["extra_info"]]
        self.ledger.admitted(self.global_steps, [str(uid) for uid in batch["uid"]], tasks)
        return int(super()._submit_batch_to_rollout(batch))

    def _add_progress(self) -> None:
        backends = self.logger.logger
        if "progress" not in backends:
            backends["progress"] = ProgressBackend.from_config(
                self.config, resumed_step=self._resumed_step, num_steps=self.total_training_steps
            )

    # -- the loop ----------------------------------------------------------------------------------

    def on_step_begin(self) -> None:
        """Between two steps nothing is in flight: the place to stop."""
        if StopSwitch.requested():
            self.global_steps -= 1  # verl has counted the step that will not be taken
            if self.global_steps > 0 and not self.checkpoints.is_complete(self.global_steps):
                self._save_checkpoint()
            raise StopRequested(self.global_steps)
        if self.base_mode == "sync":
            self._data_state_before_step = self.train_dataloader.state_dict()
        super().on_step_begin()

    def _set_aside_when_asked_to_stop(self, partition_id: str) -> None:
        """Called while episodes are waited for. Asked to stop, the run waits no longer than
        ``trainer.stop_grace_s``; what is still being played then is played again later.
        """
        if StopSwitch.requested_since_s() <= float(self.config.trainer.stop_grace_s):
            return
        if partition_id != TRAIN_PARTITION:
            logger.warning("The evaluation is set aside: it is played after the resume.")
            if not self.config.trainer.get("val_only", False):
                self._save_before_stop()
            raise StopRequested(self.global_steps)
        if getattr(self, "local_trigger_step", 0) > 0:
            return  # the weights are already half way into the next step
        logger.warning("The episodes of step %d are set aside.", self.global_steps)
        if self.base_mode == "sync":
            self.ledger.set_aside(self.global_steps)
        self.global_steps -= 1
        with self._data_order_before_step():
            self._save_before_stop()
        raise StopRequested(self.global_steps)

    def _save_before_stop(self) -> None:
        """A checkpoint of the last step, unless there is one, while the servers generate."""
        if self.global_steps == 0 or self.checkpoints.is_complete(self.global_steps):
            return
        if self.base_mode != "separate_async":
            # The servers make room for the actor, as they do before an update.
            self.checkpoint_manager.abort_replicas()
            self.checkpoint_manager.sleep_replicas()
        self._save_checkpoint()

    @contextmanager
    def _data_order_before_step(self) -> Iterator[None]:
        """Let the checkpoint forget the tasks of the step that was set aside. Asynchronous modes
        keep them: there the tasks are in TransferQueue, which is in the checkpoint.
        """
        if self._data_state_before_step is None:
            yield
            return
        dataloader, state = self.train_dataloader, self._data_state_before_step
        self.train_dataloader = SimpleNamespace(state_dict=lambda: state)
        try:
            yield
        finally:
            self.train_dataloader = dataloader

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> KVBatchMeta:
        batch = super().step(metrics, timing_raw)
        real = [
            key.rsplit("_", 2)[0]
            for key, tag in zip(batch.keys, batch.tags, strict=True)
            if not tag.get("is_padding", False)
        ]
        removed, self._removed_groups_of_step = self._removed_groups_of_step, {}
        self.ledger.trained(self.global_steps, list(dict.fromkeys(real)), list(removed))
        self._last_metrics = (self.global_steps, metrics, timing_raw)
        return batch

    def _note_evicted(self, groups: set[str]) -> None:
        self.ledger.evicted(self.global_steps, sorted(groups))

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

    # -- checkpoints -------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """verl's checkpoint, with the step's metrics, and the mark that makes it one.

        What verl does after saving a step, the evaluation and the line of metrics, is made up for
        by the run that goes on from here (``step_metrics``).
        """
        step = self.global_steps
        self.checkpoints.check_room()
        self.checkpoints.begin(step)
        try:
            super()._save_checkpoint()
            metrics_step, metrics, timing_s = self._last_metrics
            if metrics_step == step:
                keep_metrics(self.checkpoints.folder(step), metrics, timing_s)
        except Exception:
            self.checkpoints.discard(step)
            raise
        self.ledger.checkpoint(step)
        self.checkpoints.mark_complete(step)
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
        if self.base_mode != "sync":
            _forget_evaluation()
        self._resumed_step = self.global_steps
        if chosen is None or trainer.get("val_only", False):
            return
        if chosen.parent == self.checkpoints.root:
            self._owed = Owed.after(chosen, metrics_file(self.config))
        is_due = self._owed.evaluation and self._evaluates_after(self.global_steps)
        with open_dict(self.config):
            # A run evaluates where it began; what it evaluates again is what it was kept from.
            trainer.val_before_train = is_due

    def _evaluates_after(self, step: int) -> bool:
        """verl's rule for which steps are followed by an evaluation."""
        every = int(self.config.trainer.test_freq)
        return every > 0 and (step >= self.total_training_steps or step % every == 0)
