"""Bytes on a GPU in each phase of an iteration, and in the host memory of a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from megatron_agent.plan import activations
from megatron_agent.plan.ownership import StageMemory
from megatron_agent.plan.params import count_model
from megatron_agent.plan.records import GIB, Job

HOST_SHARE = 0.85
"""Of a node's memory; the rest is for Ray's object store, environments and the system."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseMemory:
    """The fullest GPU in one phase; ``parts`` are bytes by name, in reading order."""

    phase: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """All phases, the KV cache that is left, and host memory."""

    phases: tuple[PhaseMemory, ...]
    kv_tokens: int
    """Tokens that the KV cache of one server holds."""
    host_bytes: float
    """Of a node: what is offloaded, and the servers' copies of the weights."""

    @property
    def peak(self) -> PhaseMemory:
        return max(self.phases, key=lambda phase: phase.total)


def plan_memory(job: Job, num_micro_batches: int) -> MemoryPlan:
    """Bytes by phase.

    Args:
        job: a job whose layout Megatron accepts.
        num_micro_batches: of a data-parallel rank in an optimizer step; bounds what is in flight.
    """
    # The first stage has the embedding and most in flight, the last one the logits: between them
    # lies nothing fuller.
    stages = [StageMemory.of(job, stage) for stage in sorted({0, job.layout.pipeline - 1})]
    static, kv_bytes = _server_bytes(job, max(stages, key=lambda stage: stage.at_server_start))
    server = {"server weights": static - kv_bytes, "KV cache": max(kv_bytes, 0.0)}
    stays = not (job.rollout.frees_memory or job.rollout.separate_gpus)
    phases = [
        _fullest("rollout", [_rollout(job, stage, server) for stage in stages], {}),
        *(
            _fullest(name, phases_of_stages, server if stays else {})
            for name, phases_of_stages in (
                ("log-prob", [_log_prob(job, stage) for stage in stages]),
                ("update", [_update(job, stage, num_micro_batches) for stage in stages]),
                ("sync", [_sync(job, stage) for stage in stages]),
            )
        ),
    ]
    kv_per_gpu = job.shape.kv_bytes_per_token / min(job.rollout.tensor, job.shape.num_kv_heads)
    return MemoryPlan(
        phases=tuple(phases),
        kv_tokens=max(int(kv_bytes / kv_per_gpu), 0),
        host_bytes=_host_bytes(job, stages),
    )


def memory_problems(job: Job, plan: MemoryPlan) -> Iterator[str]:
    """Why the plan does not fit, one sentence each, the fullest phase first."""
    usable = job.usable_bytes
    for phase in sorted(plan.phases, key=lambda phase: -phase.total):
        if phase.total > usable:
            largest = sorted(phase.parts.items(), key=lambda part: -part[1])[:3]
            words = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest)
            yield (
                f"{phase.phase} needs {phase.total / GIB:.1f} GiB of {usable / GIB:.1f} usable "
                f"({words})"
            )
    needed = job.workload.max_row_tokens
    if plan.kv_tokens < needed:
        yield (
            f"the KV cache of a server holds {plan.kv_tokens} tokens and a row has up to {needed}"
        )
    host = job.cluster.host_memory_gib * GIB * HOST_SHARE
    if plan.host_bytes > host:
        yield (
            f"offloading needs {plan.host_bytes / GIB:.0f} GiB of host memory in a node and "
            f"{host / GIB:.0f} are usable"
        )


def _update(job: Job, stage: StageMemory, num_micro_batches: int) -> PhaseMemory:
    training = job.training
    parts = stage.active
    parts["gradients"] = stage.gradients
    parts["optimizer"] = stage.optimizer
    parts["activations"] = activations.stage_bytes(job, stage.stage, num_micro_batches)
    if stage.stage == job.layout.pipeline - 1:
        parts["logits"] = activations.logits_bytes(
            job,
            training.micro_batch_tokens,
            with_entropy=training.entropy_in_update,
            with_grad=True,
        )
    return PhaseMemory(phase="update", parts={**parts, **_trainer_overheads(job)})


def _log_prob(job: Job, stage: StageMemory) -> PhaseMemory:
    """Log-probabilities of the sampled tokens, with entropy as verl computes it there."""
    parts = stage.active
    if stage.reference:
        parts["reference weights"] = stage.reference
    num_tokens = job.training.log_prob_tokens
    parts["activations"] = activations.forward_bytes(job, num_tokens)
    if stage.stage == job.layout.pipeline - 1:
        parts["logits"] = activations.logits_bytes(
            job, num_tokens, with_entropy=True, with_grad=False
        )
    return PhaseMemory(phase="log-prob", parts={**parts, **_trainer_overheads(job)})


def _sync(job: Job, stage: StageMemory) -> PhaseMemory:
    """Weights of both sides at once, and two buckets: one being filled, one being read."""
    parts = stage.active
    if not job.rollout.separate_gpus:
        parts["server weights"] = _server_weights(job)
    parts["buckets"] = 2.0 * job.rollout.bucket_bytes
    return PhaseMemory(phase="sync", parts={**parts, **_trainer_overheads(job)})


def _rollout(job: Job, stage: StageMemory, server: Mapping[str, float]) -> PhaseMemory:
    overheads = job.overheads
    awake = _server_overhead(job) + overheads.server_awake
    if job.rollout.separate_gpus:
        return PhaseMemory(phase="rollout", parts={**server, "overheads": awake})
    return PhaseMemory(
        phase="rollout",
        parts={**stage.resident, **server, "overheads": awake + overheads.trainer},
    )


def _server_bytes(job: Job, stage: StageMemory) -> tuple[float, float]:
    """Weights and KV cache of a server on each of its GPUs, and the KV cache alone."""
    free = job.cluster.gpu.memory_gib * GIB - job.overheads.server_asleep
    if not job.rollout.separate_gpus:
        free -= stage.at_server_start + job.overheads.trainer
    weights = _server_weights(job)
    kv_bytes = job.rollout.memory_fraction * free - weights
    return weights + kv_bytes, kv_bytes


def _server_weights(job: Job) -> float:
    return job.rollout.weight_bytes * count_model(job.shape) / job.rollout.tensor


def _server_overhead(job: Job) -> float:
    graphs = job.overheads.server_graphs if job.rollout.cuda_graphs else 0.0
    return job.overheads.server_asleep + graphs


def _trainer_overheads(job: Job) -> dict[str, float]:
    if job.rollout.separate_gpus:
        return {"overheads": job.overheads.trainer}
    return {"overheads": job.overheads.trainer + _server_overhead(job)}


def _host_bytes(job: Job, stages: list[StageMemory]) -> float:
    per_gpu = 0.0
    stage = max(stages, key=lambda stage: stage.weights)
    if job.training.param_offload:
        per_gpu += stage.weights
    if job.training.reference_offload:
        per_gpu += stage.reference
    if job.training.optimizer_offload:
        per_gpu += stage.optimizer
    if not job.rollout.separate_gpus:  # SGLang keeps a copy of what it lets go of
        per_gpu += _server_weights(job)
    return per_gpu * job.cluster.gpus_per_node


def _fullest(phase: str, stages: list[PhaseMemory], server: Mapping[str, float]) -> PhaseMemory:
    """The fullest stage, with what a server keeps there that frees nothing."""
    fullest = max(stages, key=lambda stage: stage.total)
    assert fullest.phase == phase
    return PhaseMemory(phase=phase, parts={**fullest.parts, **server})
