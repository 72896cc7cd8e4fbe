"""Seconds of the trainer's phases: log-probabilities, update, and what moves around them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from megatron_agent.plan.compute import (
    GIGA,
    TERA,
    Efficiency,
    group_gb_s,
    layer_seconds,
    output_seconds,
    row_flops,
)
from megatron_agent.plan.params import count_model, count_rank, count_tensors
from megatron_agent.plan.records import Job

BF16 = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncRate:
    """What a weight sync costs: something at all, something a tensor, something a byte."""

    start_s: float
    tensor_s: float
    gb_s: float


COLOCATED_SYNC = SyncRate(start_s=2.0, tensor_s=1.5e-4, gb_s=15.0)
"""Shared memory on the same GPU, from published times of 7B, 32B and 30B-A3B (docs/plan.md)."""
SEPARATE_SYNC = SyncRate(start_s=3.0, tensor_s=1.0e-3, gb_s=5.8)
"""NCCL between devices, from published times of 7B to 72B (docs/plan.md)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateTime:
    """One call of the actor's update: all optimizer steps of an iteration."""

    total_s: float
    num_micro_batches: int
    """Of a data-parallel rank, in an optimizer step."""
    bubble: float
    """Share of the pipeline's time in which a stage waits."""
    mfu: float
    """Model FLOPs (recompute does not count) over the peak of all GPUs."""


def num_micro_batches(job: Job, num_tokens: float, budget: int, efficiency: Efficiency) -> int:
    """Micro-batches of a data-parallel rank for ``num_tokens`` of the whole batch.

    Args:
        job: gives the layout and the longest row.
        num_tokens: of all ranks.
        budget: packed tokens of a micro-batch on each context-parallel rank.
        efficiency: how full micro-batches get.

    Example:
        1 M tokens, DP8, budget 16,384, 93 % full: ceil(125000 / 15237) = 9.
    """
    per_rank = num_tokens / job.layout.data
    count = math.ceil(per_rank / (budget * job.layout.context * efficiency.balance))
    count = max(count, 1)
    if job.layout.virtual_pipeline > 1:  # the interleaved schedule takes whole rounds
        count = math.ceil(count / job.layout.pipeline) * job.layout.pipeline
    return count


def micro_batches_per_step(job: Job, efficiency: Efficiency) -> int:
    """Those of one optimizer step."""
    tokens = job.workload.mean_tokens / job.training.num_mini_batches
    return num_micro_batches(job, tokens, job.training.micro_batch_tokens, efficiency)


def bubble_share(job: Job, count: int) -> float:
    """Share of a pipeline's time that a stage waits: (PP - 1) / (VPP * m + PP - 1).

    Example:
        PP4 and 12 micro-batches wait 3 / 15 = 20 % of the time.
    """
    fill = (job.layout.pipeline - 1) / job.layout.virtual_pipeline
    return fill / (count + fill)


def straggler_factor(job: Job, num_rows: float) -> float:
    """How much more than the mean the fullest data-parallel rank has to do in an optimizer step.

    Rows differ in length and a mini-batch is dealt out by number of rows: the largest of DP normal
    sums, by Blom's formula.

    Example:
        512 rows of spread 0.8 over DP16: 1 + 0.8 / sqrt(32) * 1.77 = 1.25.
    """
    num_ranks = job.layout.data
    if num_ranks == 1:
        return 1.0
    largest = NormalDist().inv_cdf((num_ranks - 0.375) / (num_ranks + 0.25))
    return 1 + job.workload.row_spread * largest / math.sqrt(max(num_rows / num_ranks, 1.0))


def update_time(job: Job, efficiency: Efficiency) -> UpdateTime:
    """All optimizer steps of an iteration."""
    training, workload = job.training, job.workload
    num_steps = training.num_mini_batches * training.num_epochs
    step_tokens = workload.mean_tokens / training.num_mini_batches
    count = micro_batches_per_step(job, efficiency)
    # The work is that of the tokens there are, however full the last micro-batch is.
    tokens = step_tokens / (job.layout.data * job.layout.context * count)
    tokens *= straggler_factor(job, workload.mean_rows / training.num_mini_batches)
    slowest = _stage_s(job, tokens, efficiency, backward=True) + efficiency.micro_batch_overhead_s
    pipeline = slowest * (count + (job.layout.pipeline - 1) / job.layout.virtual_pipeline)
    step = pipeline + _reduce_and_step_s(job, efficiency)
    total = num_steps * step + _offload_s(job, efficiency, with_optimizer=True)
    flops = 3 * row_flops(job) * workload.mean_rows * training.num_epochs
    peak = job.cluster.gpu.bf16_tflops * TERA * job.layout.num_gpus
    return UpdateTime(
        total_s=total,
        num_micro_batches=count,
        bubble=bubble_share(job, count),
        mfu=flops / (peak * total),
    )


def log_prob_time(job: Job, efficiency: Efficiency) -> float:
    """One pass over all rows without gradients."""
    workload = job.workload
    count = num_micro_batches(job, workload.mean_tokens, job.training.log_prob_tokens, efficiency)
    tokens = workload.mean_tokens / (job.layout.data * job.layout.context * count)
    slowest = _stage_s(job, tokens, efficiency, backward=False)
    slowest += efficiency.micro_batch_overhead_s / 3
    passes = slowest * (count + job.layout.pipeline - 1)
    host = efficiency.row_host_s * workload.mean_rows
    return passes + host + _offload_s(job, efficiency, with_optimizer=False)


def sync_time(job: Job) -> float:
    """Trainer to servers: verl gathers tensor by tensor, whatever the layout."""
    rate = SEPARATE_SYNC if job.rollout.separate_gpus else COLOCATED_SYNC
    tensors_s = rate.tensor_s * count_tensors(job.shape)
    return rate.start_s + tensors_s + sync_bytes(job) / (rate.gb_s * GIGA)


def sync_bytes(job: Job) -> int:
    """Bytes of one weight sync: every tensor once, in bfloat16."""
    return BF16 * count_model(job.shape)


def _stage_s(job: Job, num_tokens: float, efficiency: Efficiency, *, backward: bool) -> float:
    """The slowest stage on one micro-batch: the last one, with the output layer."""
    tokens = round(num_tokens)
    layer, output = (
        seconds(job, tokens, efficiency) for seconds in (layer_seconds, output_seconds)
    )
    num_layers = job.shape.num_layers // job.layout.pipeline
    forward = num_layers * layer.forward + output.forward
    if not backward:
        return forward
    again = num_layers * layer.forward if job.training.recompute_layers else 0.0
    return forward + again + num_layers * layer.backward + output.backward


def _reduce_and_step_s(job: Job, efficiency: Efficiency) -> float:
    """Gradients to their shards, Adam on the shards, new weights to everybody."""
    layout, training = job.layout, job.training
    params = count_rank(job.shape, layout, 0)
    seconds = 0.0
    for count, shards, stride in (
        (params.dense, layout.optimizer_shards, layout.tensor),
        (params.expert, layout.expert_optimizer_shards, layout.expert_tensor * layout.expert),
    ):
        if not count or training.lora_rank:
            continue
        moved = (training.grad_bytes + BF16) * count * (shards - 1) / shards
        seconds += moved / group_gb_s(job, stride, shards, efficiency)
        # Read gradient, master weight and moments, write them and the weight.
        touched = (training.grad_bytes + 2 * training.optimizer_bytes + BF16) * count / shards
        seconds += touched / (job.cluster.gpu.memory_gb_s * GIGA * efficiency.hbm)
    return seconds


def _offload_s(job: Job, efficiency: Efficiency, *, with_optimizer: bool) -> float:
    """To the GPU before a phase and back after it."""
    layout, training = job.layout, job.training
    params = count_rank(job.shape, layout, 0)
    moved = BF16 * params.total if training.param_offload else 0.0
    if training.optimizer_offload and with_optimizer:
        moved += training.optimizer_bytes * (
            params.dense / layout.optimizer_shards + params.expert / layout.expert_optimizer_shards
        )
    return 2 * moved / (job.cluster.pcie_gb_s * GIGA * efficiency.pcie)
