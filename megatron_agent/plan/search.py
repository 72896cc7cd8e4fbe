"""The best layouts for a job, and why others do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from megatron_agent.plan.compute import Efficiency
from megatron_agent.plan.layout import Layout
from megatron_agent.plan.memory import MemoryPlan, memory_problems, plan_memory
from megatron_agent.plan.plan import Plan, make_plan, refused
from megatron_agent.plan.records import Job, Training
from megatron_agent.plan.training_time import micro_batches_per_step

POWERS = (1, 2, 4, 8, 16, 32)
MAX_PIPELINE = 16
MAX_CONTEXT = 4
LONG_ROW_TOKENS = 16384
"""Rows from this length on are worth cutting (context parallelism). Shorter ones gain nothing that
more copies of the model would not give."""
MICRO_BATCH_TOKENS = (8192, 16384, 32768)
OFFLOADS = ((False, False), (False, True), (True, True))
"""Parameters, optimizer: the optimizer alone gives more than parameters alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """What a search found."""

    fitting: tuple[Plan, ...]
    """The fastest variant of each layout that has one that fits, fastest first."""
    failing: tuple[Plan, ...]
    """For layout and offload without a variant that fits, the variant nearest to fitting."""
    num_tried: int


def search(job: Job) -> SearchResult:
    """Try layouts, micro-batches, recompute, offload and server sizes around a job.

    Model, cluster, batch and memory fraction stay as they are. Tensor parallelism stays inside a
    node: across nodes it never wins. Virtual stages are tried in the job's own number.
    """
    efficiency = Efficiency()
    fastest: dict[str, Plan] = {}
    fit: set[tuple[str, bool, bool]] = set()
    nearest: dict[tuple[str, bool, bool], tuple[float, Job]] = {}
    num_tried = 0
    for candidate in _candidates(job):
        num_tried += 1
        training, name = candidate.training, str(candidate.layout)
        key = (name, training.param_offload, training.optimizer_offload)
        memory = plan_memory(candidate, micro_batches_per_step(candidate, efficiency))
        if next(memory_problems(candidate, memory), None) is None:
            fit.add(key)
            plan = make_plan(candidate, efficiency, memory=memory)
            if name not in fastest or plan.step_s < fastest[name].step_s:
                fastest[name] = plan
        elif key not in nearest or _excess(candidate, memory) < nearest[key][0]:
            nearest[key] = (_excess(candidate, memory), candidate)
    failing = sorted(
        (found for key, found in nearest.items() if key not in fit), key=lambda found: found[0]
    )
    return SearchResult(
        fitting=tuple(sorted(fastest.values(), key=lambda plan: plan.step_s)),
        failing=tuple(make_plan(candidate) for _, candidate in failing),
        num_tried=num_tried,
    )


def _excess(job: Job, memory: MemoryPlan) -> float:
    """By how much a plan is too large: the excess of its fullest phase, in shares of a GPU.

    A plan may fit its GPUs and fail by its cache or by host memory; it comes after those that
    nearly fit.
    """
    excess = memory.peak.total / job.usable_bytes - 1
    return excess if excess > 0 else 1.0


def _candidates(job: Job) -> Iterator[Job]:
    for layout in _layouts(job):
        for rollout_tensor in _sizes(job.cluster.gpus_per_node):
            base = replace(job, layout=layout, rollout=replace(job.rollout, tensor=rollout_tensor))
            if refused(base):
                continue
            for training in _trainings(job, layout):
                yield replace(base, training=training)


def _layouts(job: Job) -> Iterator[Layout]:
    num_gpus, shape = job.layout.num_gpus, job.shape
    experts = _sizes(min(shape.num_experts, num_gpus)) if shape.num_experts else (1,)
    is_long = job.workload.max_row_tokens >= LONG_ROW_TOKENS
    for tensor in _sizes(job.cluster.gpus_per_node):
        for pipeline in _sizes(min(MAX_PIPELINE, num_gpus)):
            virtual = {1, job.layout.virtual_pipeline} if pipeline > 1 else {1}
            contexts = _sizes(MAX_CONTEXT if is_long else 1)
            for num_virtual, context, expert in product(sorted(virtual), contexts, experts):
                yield Layout(
                    num_gpus=num_gpus,
                    tensor=tensor,
                    pipeline=pipeline,
                    virtual_pipeline=num_virtual,
                    context=context,
                    expert=expert,
                    # Whole experts on a rank: their matrices are small already.
                    expert_tensor=1 if shape.num_experts else tensor,
                )


def _trainings(job: Job, layout: Layout) -> Iterator[Training]:
    # Budgets are of a context-parallel rank.
    longest = -(-job.workload.max_row_tokens // layout.context)
    budgets = sorted({max(budget, longest) for budget in MICRO_BATCH_TOKENS})
    own = job.training.log_prob_tokens
    follows = own == job.training.micro_batch_tokens
    for budget in budgets:
        for recompute in (0, 1):
            for param_offload, optimizer_offload in OFFLOADS:
                yield replace(
                    job.training,
                    micro_batch_tokens=budget,
                    log_prob_tokens=budget if follows else max(own, longest),
                    sequence_parallel=layout.tensor > 1 or job.training.sequence_parallel,
                    recompute_layers=recompute,
                    param_offload=param_offload,
                    reference_offload=param_offload or job.training.reference_offload,
                    optimizer_offload=optimizer_offload,
                )


def _sizes(largest: int) -> Sequence[int]:
    return tuple(size for size in POWERS if size <= largest)
