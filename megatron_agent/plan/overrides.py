"""The keys that a search replaces, and what to set so that a run is what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from megatron_agent.config.rules.batches import FORWARD_TOKENS_KEYS, TOKENS_KEY
from megatron_agent.config.rules.combinations import TRANSFORMER_KEY, VIRTUAL_KEY
from megatron_agent.config.rules.layout import (
    CP_KEY,
    EP_KEY,
    MEGATRON_KEY,
    PP_KEY,
    ROLLOUT_TP_KEY,
    TP_KEY,
)
from megatron_agent.plan.records import Job

EXPERT_TP_KEY = f"{MEGATRON_KEY}.expert_tensor_parallel_size"
REFERENCE_OFFLOAD_KEY = "actor_rollout_ref.ref.megatron.param_offload"

SEARCHED: Mapping[str, Callable[[Job], object]] = {
    TP_KEY: lambda job: job.layout.tensor,
    PP_KEY: lambda job: job.layout.pipeline,
    VIRTUAL_KEY: lambda job: _or_null(job.layout.virtual_pipeline, 1),
    CP_KEY: lambda job: job.layout.context,
    EP_KEY: lambda job: job.layout.expert,
    EXPERT_TP_KEY: lambda job: job.layout.expert_tensor if job.shape.num_experts else None,
    f"{MEGATRON_KEY}.sequence_parallel": lambda job: job.training.sequence_parallel,
    f"{MEGATRON_KEY}.param_offload": lambda job: job.training.param_offload,
    f"{MEGATRON_KEY}.optimizer_offload": lambda job: job.training.optimizer_offload,
    REFERENCE_OFFLOAD_KEY: lambda job: job.training.reference_offload,
    TOKENS_KEY: lambda job: job.training.micro_batch_tokens,
    **dict.fromkeys(FORWARD_TOKENS_KEYS, lambda job: job.training.log_prob_tokens),
    f"{TRANSFORMER_KEY}.recompute_granularity": lambda job: "full" if _chunk(job) else "null",
    f"{TRANSFORMER_KEY}.recompute_method": lambda job: "uniform" if _chunk(job) else "null",
    f"{TRANSFORMER_KEY}.recompute_num_layers": lambda job: _or_null(_chunk(job), 0),
    ROLLOUT_TP_KEY: lambda job: job.rollout.tensor,
}
"""What a search replaces, and the value of each key for a job; None where it says nothing."""

FOLLOWING = (EXPERT_TP_KEY, REFERENCE_OFFLOAD_KEY, *FORWARD_TOKENS_KEYS)
"""Keys that follow another one unless they are set: equal values do not tell whether they are."""


def overrides(base: Job, job: Job) -> tuple[str, ...]:
    """What to add to the command line of ``base`` so that it becomes ``job``, found around it."""
    return tuple(
        f"{key}={str(value(job)).lower()}"
        for key, value in SEARCHED.items()
        if value(job) is not None and (key in FOLLOWING or value(job) != value(base))
    )


def _chunk(job: Job) -> int:
    return job.training.recompute_layers


def _or_null(number: int, unset: int) -> int | str:
    return "null" if number == unset else number
