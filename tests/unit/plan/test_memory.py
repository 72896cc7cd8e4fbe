"""Bytes of each phase, against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from megatron_agent.plan.memory import MemoryPlan, PhaseMemory, memory_problems, plan_memory
from megatron_agent.plan.records import GIB, Job

pytestmark = pytest.mark.unit

MakeJob = Callable[..., Job]
PARAMS_7B = 7_615_616_512
CUT_7B = PARAMS_7B // 2 + 57 * 3584 // 2
"""On each of two tensor-parallel ranks: the 57 norms are on both."""


def phase(plan: MemoryPlan, name: str) -> PhaseMemory:
    return next(phase for phase in plan.phases if phase.phase == name)


def test_weights_gradients_and_sharded_optimizer(make_job: MakeJob) -> None:
    parts = phase(plan_memory(make_job(tensor=2), 4), "update").parts
    assert parts["weights"] == 2 * CUT_7B
    assert parts["gradients"] == 4 * CUT_7B
    assert parts["optimizer"] == 12 * CUT_7B / 4  # DP4


def test_context_parallel_ranks_share_the_optimizer_too(make_job: MakeJob) -> None:
    parts = phase(plan_memory(make_job(tensor=2, context=2), 4), "update").parts
    assert parts["optimizer"] == 12 * CUT_7B / 4  # DP2 x CP2


def test_offload_leaves_the_gpu_to_the_servers(make_job: MakeJob) -> None:
    offloaded = plan_memory(make_job(tensor=2, param_offload=True, optimizer_offload=True), 4)
    assert set(phase(offloaded, "rollout").parts) == {"server weights", "KV cache", "overheads"}
    kept = phase(plan_memory(make_job(tensor=2), 4), "rollout").parts
    assert {"weights", "gradients", "optimizer"} <= set(kept)
    # What is on the GPU in the update does not depend on where it waits.
    assert (
        phase(offloaded, "update").total
        == phase(plan_memory(make_job(tensor=2), 4), "update").total
    )


def test_the_kv_cache_is_what_the_fraction_leaves_beside_the_weights(make_job: MakeJob) -> None:
    job = make_job(param_offload=True, optimizer_offload=True, memory_fraction=0.5)
    plan = plan_memory(job, 4)
    free = (79.6 - 1.2 - 3.0) * GIB
    cache = 0.5 * free - 2 * PARAMS_7B
    assert phase(plan, "rollout").parts["KV cache"] == pytest.approx(cache)
    assert plan.kv_tokens == int(cache / 57344)


def test_a_server_of_more_gpus_than_kv_heads_keeps_copies_of_the_cache(make_job: MakeJob) -> None:
    offload = {"param_offload": True, "optimizer_offload": True}
    four, eight = (
        plan_memory(make_job(rollout_tensor=size, **offload), 4) for size in (4, 8)
    )  # four key-value heads
    gained = phase(eight, "rollout").parts["KV cache"] / phase(four, "rollout").parts["KV cache"]
    assert eight.kv_tokens == pytest.approx(four.kv_tokens * gained, rel=1e-6)


def test_separate_servers_share_nothing_with_the_trainer(make_job: MakeJob) -> None:
    plan = plan_memory(make_job(separate_gpus=8), 4)
    assert "weights" not in phase(plan, "rollout").parts
    assert "server weights" not in phase(plan, "sync").parts
    assert plan.host_bytes == 0.0


def test_at_sync_both_sides_hold_weights_and_two_buckets(make_job: MakeJob) -> None:
    job = make_job(tensor=2, rollout_tensor=2, param_offload=True, optimizer_offload=True)
    parts = phase(plan_memory(job, 4), "sync").parts
    assert parts["weights"] == 2 * CUT_7B
    assert parts["server weights"] == PARAMS_7B
    assert parts["buckets"] == 4 * GIB


def test_adapters_have_gradients_and_the_model_none(make_job: MakeJob) -> None:
    parts = phase(plan_memory(make_job(lora_rank=16, has_reference=True), 4), "update").parts
    adapters = parts["gradients"] / 4
    assert adapters < PARAMS_7B / 100
    assert parts["weights"] == 2 * (PARAMS_7B + adapters)
    assert "reference weights" not in parts


def test_the_first_stage_holds_most_activations_and_the_last_one_the_logits(
    make_job: MakeJob,
) -> None:
    plain = plan_memory(make_job(pipeline=4), 16)
    assert "logits" not in phase(plain, "update").parts
    short = plan_memory(make_job(pipeline=4, recompute_layers=1), 16)
    assert "logits" in phase(short, "update").parts


def test_experts_shard_their_optimizer_over_other_ranks(make_job: MakeJob) -> None:
    job = make_job("qwen3-30b-a3b", expert=8, expert_tensor=1)
    parts = phase(plan_memory(job, 4), "update").parts
    experts = 48 * 16 * 3 * 2048 * 768
    dense = parts["weights"] / 2 - experts
    assert parts["optimizer"] == pytest.approx(12 * (dense / 8 + experts / 1))


def test_what_does_not_fit_is_said_with_its_largest_part(make_job: MakeJob) -> None:
    job = make_job("qwen2.5-72b-instruct", tensor=8)
    problems = list(memory_problems(job, plan_memory(job, 4)))
    assert problems[0].startswith("sync needs 297.3 GiB of 73.2 usable (server weights 135.4, ")
    assert any("the KV cache of a server holds 0 tokens" in text for text in problems)


def test_host_memory_is_counted(make_job: MakeJob) -> None:
    job = make_job("qwen2.5-72b-instruct", tensor=8, param_offload=True, optimizer_offload=True,
                   rollout_tensor=8)  # fmt: skip
    plan = plan_memory(job, 4)
    shared = 2 * 72_706_203_648
    assert plan.host_bytes == pytest.approx((1 + 6 + 1) * shared, rel=0.001)
    assert not [text for text in memory_problems(job, plan) if "host memory" in text]
    two = make_job("qwen2.5-72b-instruct", tensor=4, param_offload=True, optimizer_offload=True,
                   rollout_tensor=1)  # fmt: skip
    texts = list(memory_problems(two, plan_memory(two, 4)))
    assert any("GiB of host memory in a node" in text for text in texts)
