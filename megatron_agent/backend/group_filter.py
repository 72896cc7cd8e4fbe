"""Dynamic sampling (DAPO, Yu et al., arXiv 2503.14476) with a bound that holds.

verl's replay buffers evict groups whose rewards are all equal and ask for further prompts, without
end, and what they evict is gone from every metric. The classes here lie over both of them:

- *equal* means equal within the tolerance of the credit methods, on episode returns;
- a step rolls out at most ``algorithm.filter_groups.max_num_gen_batches`` batches of groups, not
  counting replacements of failed ones (``sync_refill_failed_groups``). At the bound groups without
  spread stay in the batch: ``algorithm.filter_at_bound`` says whether the run trains on them, which
  adds nothing to the update, or stops;
- the episodes of every group that was taken away are handed to the trainer, so that success is
  counted over all that was played. Counted over kept groups alone it says nothing: those are the
  ones that are half solved, at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from megatron_agent.credit import CreditRows
from megatron_agent.credit.group_filter import groups_with_spread
from megatron_agent.errors import GroupFilterError

if TYPE_CHECKING:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer as _VerlReplayBuffer
else:
    _VerlReplayBuffer = object  # comes in by the classes below

Row = Mapping[str, Any]

TRAIN_PARTITION = "train"


class GroupFilterMixin(_VerlReplayBuffer):
    """The bound and the memory of what was taken away, over a verl replay buffer."""

    num_groups: int
    max_num_batches: int
    at_bound: str
    normalize_by_length: bool
    refill_fn: Any
    bounds_refills = False
    """verl's synchronous buffer asks for two prompts where one group was evicted."""

    def use_bound(
        self,
        *,
        num_groups: int,
        max_num_batches: int,
        at_bound: str,
        normalize_by_length: bool = False,
    ) -> None:
        """Set the options.

        Args:
            num_groups: groups of a training batch.
            max_num_batches: batches of groups that a step may roll out, the first one included.
            at_bound: ``train`` or ``stop``.
            normalize_by_length: sessions are compared by return per step.
        """
        self.num_groups, self.max_num_batches = num_groups, max_num_batches
        self.at_bound, self.normalize_by_length = at_bound, normalize_by_length
        self._has_spread: dict[str, bool] = {}
        self._removed: dict[str, list[Row]] = {}
        self._num_evicted = 0
        self._ask_for_prompts = self.refill_fn
        self._num_asked = self._num_failed = 0
        if self.bounds_refills:
            self.refill_fn = self._refill_within_bound

    @property
    def _max_extra_groups(self) -> int:
        return (self.max_num_batches - 1) * self.num_groups

    def take_removed(self) -> dict[str, list[Row]]:
        """The rows' extra fields of each group that was taken away since the last call, by row
        key.
        """
        removed, self._removed = self._removed, {}
        return removed

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        batch = super().sample(global_steps, partition_id, batch_size)
        if partition_id == TRAIN_PARTITION:  # asynchronous modes may evict before they sample
            self._num_evicted = self._num_asked = self._num_failed = 0
        return batch

    def _refill_within_bound(self, num_prompts: int) -> Any:
        # Groups that failed and are replaced have nothing to do with the bound. Out of it they
        # would leave too few for those without spread, and the step would wait for ever.
        allowed = min(num_prompts, self._max_extra_groups + self._num_failed - self._num_asked)
        if allowed > 0:
            self._num_asked += allowed
            assert self._ask_for_prompts is not None
            return self._ask_for_prompts(allowed)
        return None

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        """Groups to evict now: without spread, and no more than the bound lets us replace."""
        if partition_id != TRAIN_PARTITION or self.filter_groups_metric is None:
            return set(), Counter()
        finished = self.finished_keys[partition_id]
        self._has_spread = {uid: v for uid, v in self._has_spread.items() if uid in finished}
        self._classify(partition_id, finished - self._has_spread.keys())
        flat = sorted(uid for uid in finished if not self._has_spread[uid])
        evicted = flat[: max(0, self._max_extra_groups - self._num_evicted)]
        return set(evicted), Counter()

    def _classify(self, partition_id: str, uids: set[str]) -> None:
        keys = [key for key in self.partitions[partition_id] if _uid(key) in uids]
        if not keys:
            return
        rows = _extra_fields(keys, partition_id)
        spread = groups_with_spread(
            CreditRows.from_keys(
                keys,
                step_reward_N=np.array([float(row["step_reward"]) for row in rows]),
                episode_return_N=np.array([float(row["episode_return"]) for row in rows]),
                action_valid_N=np.array([bool(row["action_valid"]) for row in rows]),
            ),
            normalize_by_length=self.normalize_by_length,
        )
        self._has_spread.update(zip(spread.uid_P, spread.keep_P.tolist(), strict=True))

    def _evict_terminal_groups(
        self, global_steps: int, partition_id: str, eviction_reasons: Any
    ) -> Any:
        self._num_evicted += len(eviction_reasons[1])
        self._num_failed += len(eviction_reasons[2])
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """Every group that is not trained on passes here."""
        if partition_id == TRAIN_PARTITION:
            keys = [key for key in self.partitions[partition_id] if _uid(key) in uids]
            for key, row in zip(keys, _extra_fields(keys, partition_id), strict=True):
                self._removed.setdefault(_uid(key), []).append({**row, "key": key})
        super()._clear_groups(partition_id, uids)

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> Any:
        """Groups without spread come last: they are here only because the bound was reached."""
        if partition_id != TRAIN_PARTITION:
            return super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        useful = {uid for uid in sampleable_keys if self._has_spread.get(uid, True)}
        if len(useful) >= batch_size:
            return super()._select_prompt_uids(partition_id, useful, batch_size)
        if self.at_bound == "stop":
            raise GroupFilterError(
                f"{self._num_evicted + len(sampleable_keys)} groups were rolled out and "
                f"{len(useful)} of the {batch_size} wanted have returns that differ. "
                f"algorithm.filter_groups.max_num_gen_batches={self.max_num_batches} allows no "
                "more: raise it, choose tasks that are neither solved nor hopeless, or set "
                "algorithm.filter_at_bound=train."
            )
        chosen, partition, steps = super()._select_prompt_uids(
            partition_id, sampleable_keys - useful, batch_size - len(useful)
        )
        first, _, _ = super()._select_prompt_uids(partition_id, useful, len(useful))
        return [*first, *chosen], partition, steps


class FilteringReplayBuffer(GroupFilterMixin, ReplayBuffer):
    """For mode ``sync``."""

    bounds_refills = True


class FilteringReplayBufferAsync(GroupFilterMixin, ReplayBufferAsync):
    """For the asynchronous modes."""


def filtering(replay_buffer: ReplayBuffer, **bound: Any) -> ReplayBuffer:
    """``replay_buffer``, as verl built it, with a bound: arguments of `GroupFilterMixin.use_bound`.

    verl chooses and builds the class itself, from a list of arguments that grows with each
    release; so the object is taken as it is and given the class that knows more.
    """
    is_async = isinstance(replay_buffer, ReplayBufferAsync)
    cls: Any = FilteringReplayBufferAsync if is_async else FilteringReplayBuffer
    bounded = cls.__new__(cls)
    vars(bounded).update(vars(replay_buffer))
    bounded.use_bound(**bound)
    return bounded


def _uid(key: str) -> str:
    return key.split("_")[0]


def _extra_fields(keys: Sequence[str], partition_id: str) -> list[dict[str, Any]]:
    if not keys:
        return []
    data = tq.kv_batch_get(
        keys=list(keys), partition_id=partition_id, select_fields=["extra_fields"]
    )
    return [dict(getattr(row, "data", row)) for row in list(data["extra_fields"])]
