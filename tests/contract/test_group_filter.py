"""Dynamic sampling over verl's own replay buffers, with a TransferQueue that is a dictionary."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_agent.errors import GroupFilterError

pytestmark = pytest.mark.contract

NUM_SESSIONS = 2


class Queue:
    """Groups as a run leaves them in TransferQueue: finished at once, with the returns given."""

    def __init__(self, returns: list[tuple[float, ...]]) -> None:
        self.upcoming = list(returns)
        self.tags: dict[str, dict[str, Any]] = {}
        self.fields: dict[str, dict[str, Any]] = {}
        self.num_asked = 0
        self.returns_of: dict[str, tuple[float, ...]] = {}

    def ask(self, num_prompts: int) -> None:
        """What the trainer does when the buffer wants further prompts."""
        for _ in range(num_prompts):
            uid = f"g{self.num_asked:02d}"
            self.num_asked += 1
            returns = self.returns_of[uid] = self.upcoming.pop(0)
            status = "finished" if returns else "failure"
            self.tags[uid] = {"is_prompt": True, "status": status, "global_steps": 1}
            for session, total in enumerate(returns):
                key = f"{uid}_{session}_0"
                self.tags[key] = {"status": "success"}
                self.fields[key] = {
                    "step_reward": total,
                    "episode_return": total,
                    "action_valid": True,
                }

    def kv_list(self, *_: Any) -> dict[str, Any]:
        return {"train": {key: dict(tag) for key, tag in self.tags.items()}}

    def kv_batch_get(self, *, keys: list[str], **_: Any) -> dict[str, Any]:
        return {"extra_fields": [self.fields[key] for key in keys]}

    def kv_clear(self, *, keys: list[str], **_: Any) -> None:
        for key in keys:
            self.tags.pop(key, None)


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch):
    """One batch of two groups out of the given ones; returns its uids, the buffer, the queue."""
    from verl.trainer.ppo.v1 import replay_buffer as verl_module

    from megatron_agent.backend import group_filter

    def run(
        mode: str,
        returns: list[tuple[float, ...]],
        *,
        max_num_batches: int,
        at_bound: str,
        refill_failed: bool = False,
    ) -> tuple[list[str], Any, Queue]:
        queue = Queue(returns)
        for module in (verl_module, group_filter):
            monkeypatch.setattr(module, "tq", queue)
        is_sync = mode == "sync"
        cls = verl_module.ReplayBuffer if is_sync else verl_module.ReplayBufferAsync
        sync_only: dict[str, Any] = {"train_batch_size": 2, "gen_batch_size": 1} if is_sync else {}
        if refill_failed:
            sync_only["sync_refill_failed_groups"] = True
        buffer = group_filter.filtering(
            cls(
                trainer_mode=mode,
                trainer_config={},
                max_off_policy_threshold=4,
                max_off_policy_strategy="drop",
                sampler_kwargs={},
                poll_interval=0.001,
                refill_fn=queue.ask,
                filter_groups_metric="reward",
                **sync_only,
            ),
            num_groups=2,
            max_num_batches=max_num_batches,
            at_bound=at_bound,
        )
        queue.ask(2)
        batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
        return sorted({key.split("_")[0] for key in batch.keys}), buffer, queue

    return run


WON, LOST, MIXED = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)
FAILED = ()
"""No session left a row."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_groups_of_equal_returns_are_replaced_and_remembered(sample: Any, mode: str) -> None:
    uids, buffer, _ = sample(
        mode, [WON, MIXED, LOST, MIXED, MIXED, MIXED], max_num_batches=5, at_bound="stop"
    )
    assert len(uids) == 2
    assert "g00" not in uids and "g02" not in uids
    removed = buffer.take_removed()
    assert {"g00", "g02"} <= removed.keys()
    assert [row["key"] for row in removed["g00"]] == ["g00_0_0", "g00_1_0"]
    assert [row["episode_return"] for row in removed["g00"]] == [1.0, 1.0]
    assert buffer.take_removed() == {}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_at_the_bound_a_run_trains_on_what_there_is(sample: Any, mode: str) -> None:
    uids, _, queue = sample(
        mode, [WON, LOST, WON, MIXED, MIXED, MIXED], max_num_batches=2, at_bound="train"
    )
    # Two batches of two: the group with spread comes first, one without fills up.
    assert queue.num_asked == 4
    assert "g03" in uids and len(uids) == 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_at_the_bound_a_run_stops_when_told_so(sample: Any, mode: str) -> None:
    with pytest.raises(GroupFilterError) as raised:
        sample(mode, [WON, LOST, WON, MIXED, MIXED], max_num_batches=2, at_bound="stop")
    assert "1 of the 2 wanted have returns that differ" in str(raised.value)
    assert "max_num_gen_batches=2 allows no more" in str(raised.value)


def test_returns_that_differ_by_rounding_are_equal(sample: Any) -> None:
    noisy = (0.1 + 0.2, 0.3)
    uids, _, _ = sample("sync", [noisy, MIXED, MIXED, MIXED], max_num_batches=5, at_bound="stop")
    assert "g00" not in uids


@pytest.mark.timeout(60)
@pytest.mark.parametrize("max_num_batches", [1, 2])
def test_failed_groups_are_replaced_beside_the_bound(sample: Any, max_num_batches: int) -> None:
    """They used to use it up: then groups without spread went and none came, and a step hung."""
    uids, _, queue = sample(
        "sync",
        [FAILED, FAILED, FAILED, WON, *[LOST, FAILED] * 2, *[LOST] * 4],
        max_num_batches=max_num_batches,
        at_bound="train",
        refill_failed=True,
    )
    assert len(uids) == 2
    num_failed = sum(not queue.returns_of[uid] for uid in queue.returns_of)
    assert queue.num_asked - num_failed <= max_num_batches * 2
