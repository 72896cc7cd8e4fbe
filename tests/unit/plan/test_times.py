"""Seconds: limits that one can compute by hand, and what must grow with what."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from megatron_agent.plan.compute import Efficiency, layer_seconds, row_flops
from megatron_agent.plan.generation_time import (
    ServerEfficiency,
    last_end,
    rollout_time,
    survivors,
)
from megatron_agent.plan.records import Job
from megatron_agent.plan.training_time import (
    bubble_share,
    log_prob_time,
    micro_batches_per_step,
    straggler_factor,
    sync_bytes,
    sync_time,
    update_time,
)

pytestmark = pytest.mark.unit

MakeJob = Callable[..., Job]
PERFECT = Efficiency(
    matmul=1.0, attention=1.0, expert_matmul=1.0, hbm=1e9, nvlink=1e9, network=1e9, pcie=1e9,
    balance=1.0, micro_batch_overhead_s=0.0, row_host_s=0.0,
)  # fmt: skip
PERFECT_SERVER = ServerEfficiency(
    hbm=1.0, matmul=1.0, step_s=0.0, sequence_s=0.0, all_reduce_s=0.0, prefix_hits=1.0
)


def test_flops_of_a_row_by_hand(make_job: MakeJob) -> None:
    job = make_job(mean_prompt_tokens=900.0, mean_response_tokens=100.0)
    active = 28 * (3584 * (2 * 3584 + 2 * 512) + 3 * 3584 * 18944) + 152064 * 3584
    assert row_flops(job) == 2 * active * 1000 + 28 * 2 * 3584 * 1000**2


def test_without_losses_the_update_reaches_what_products_sustain(make_job: MakeJob) -> None:
    """Attention costs 3.5 passes instead of 3, so a little less than the 0.7 of the GPU."""
    job = make_job(row_spread=0.0)
    assert update_time(job, PERFECT).mfu == pytest.approx(0.7, rel=0.01)


def test_recompute_costs_a_forward_pass(make_job: MakeJob) -> None:
    plain, again = (update_time(make_job(recompute_layers=n), PERFECT).total_s for n in (0, 1))
    assert again / plain == pytest.approx(4 / 3, rel=0.03)  # the output layer is not done again


def test_adapters_save_the_gradients_of_weights(make_job: MakeJob) -> None:
    plain, adapted = (update_time(make_job(lora_rank=n), PERFECT).total_s for n in (0, 16))
    assert adapted / plain == pytest.approx(2 / 3, rel=0.03)


def test_log_probabilities_cost_a_third_of_the_update(make_job: MakeJob) -> None:
    job = make_job(row_spread=0.0)
    ratio = log_prob_time(job, PERFECT) / update_time(job, PERFECT).total_s
    assert ratio == pytest.approx(1 / 3, rel=0.02)


def test_micro_batches_by_hand(make_job: MakeJob) -> None:
    # 16 x 8 episodes of 5 rows of 1,000 tokens, DP8, 8,192 tokens 93 % full, two steps.
    assert micro_batches_per_step(make_job(num_mini_batches=2), Efficiency()) == -(-40_000 // 7618)
    interleaved = make_job(pipeline=4, virtual_pipeline=7)
    assert micro_batches_per_step(interleaved, Efficiency()) % 4 == 0


def test_the_bubble_by_hand(make_job: MakeJob) -> None:
    assert bubble_share(make_job(pipeline=4), 12) == pytest.approx(3 / 15)
    assert bubble_share(make_job(pipeline=4, virtual_pipeline=7), 12) < 0.04
    assert bubble_share(make_job(), 12) == 0.0


def test_stragglers_by_hand(make_job: MakeJob) -> None:
    job = make_job(num_nodes=2, row_spread=0.8)  # DP16: the largest of 16 is 1.77 deviations off
    assert straggler_factor(job, 512) == pytest.approx(1 + 0.8 / 32**0.5 * 1.77, rel=1e-3)
    assert straggler_factor(make_job(tensor=4, pipeline=2), 512) == 1.0


def test_tensor_parallelism_across_nodes_is_slower(make_job: MakeJob) -> None:
    inside = layer_seconds(make_job(tensor=8, num_nodes=2), 8192, Efficiency()).forward
    across = layer_seconds(make_job(tensor=16, num_nodes=2), 8192, Efficiency()).forward
    assert across > inside


def test_all_tensors_are_synced_once(make_job: MakeJob) -> None:
    job = make_job()
    assert sync_bytes(job) == 2 * 7_615_616_512
    assert sync_time(job) == pytest.approx(2.0 + 339 * 1.5e-4 + 15.23 / 15.0, rel=1e-3)
    separate = sync_time(make_job(separate_gpus=8))
    assert separate == pytest.approx(3.0 + 0.339 + 15.23 / 5.8, rel=1e-3)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.8, 0.98])
def test_survivors_have_the_mean_that_was_asked_for(share: float) -> None:
    points = np.linspace(0.0, 100.0, 20_001)
    left = survivors(points, mean=100.0 * share, longest=100.0)
    assert np.trapezoid(left, points) == pytest.approx(100.0 * share, rel=0.01)
    assert (np.diff(left) <= 1e-12).all()


def test_the_longest_of_many_runs_into_the_limit() -> None:
    assert last_end(1000, mean=50.0, longest=100.0) > 99.0
    assert last_end(10, mean=5.0, longest=100.0) < 20.0


def test_a_lone_sequence_reads_the_weights_for_each_token(make_job: MakeJob) -> None:
    job = make_job(
        num_groups=8, group_size=1, max_steps=1, mean_steps=1.0, mean_prompt_tokens=1.0,
        mean_response_tokens=256.0, max_response_tokens=512, env_step_s=0.0,
    )  # fmt: skip
    time = rollout_time(job, 10**6, PERFECT_SERVER)
    # One sequence on each of eight servers, of 512 tokens at most: 14.1 GB at 3,350 GB/s a token.
    assert time.concurrency == 1.0
    assert 250 * 0.0042 < time.total_s < 520 * 0.0045


def test_a_small_cache_makes_episodes_wait(make_job: MakeJob) -> None:
    job = make_job(num_groups=64)
    roomy = rollout_time(job, 10**6, ServerEfficiency())
    tight = rollout_time(job, 10_000, ServerEfficiency())
    assert (roomy.full_s, roomy.concurrency) == (0.0, 64.0)
    assert tight.concurrency == 10.0
    assert tight.total_s > roomy.total_s


def test_the_environment_adds_its_steps_to_the_longest_episode(make_job: MakeJob) -> None:
    slow = rollout_time(make_job(env_step_s=2.0), 10**6, ServerEfficiency())
    fast = rollout_time(make_job(env_step_s=0.0), 10**6, ServerEfficiency())
    assert slow.total_s == pytest.approx(fast.total_s + 20.0)
