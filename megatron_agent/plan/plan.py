"""One plan: what fits, how long each phase takes, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megatron_agent.plan.compute import Efficiency
from megatron_agent.plan.generation_time import RolloutTime, ServerEfficiency, rollout_time
from megatron_agent.plan.layout import layout_problems
from megatron_agent.plan.memory import MemoryPlan, memory_problems, plan_memory
from megatron_agent.plan.records import Job
from megatron_agent.plan.training_time import (
    UpdateTime,
    log_prob_time,
    micro_batches_per_step,
    sync_time,
    update_time,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The answer for one job. Times are of one iteration."""

    job: Job
    problems: tuple[str, ...]
    """Why it cannot run; empty when it fits."""
    memory: MemoryPlan
    rollout: RolloutTime
    update: UpdateTime
    phases_s: Mapping[str, float]
    """Seconds by phase, in order."""
    step_s: float
    """An iteration; with separate servers the slower side of it."""

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Trained tokens over an iteration and all GPUs, those of separate servers included."""
        num_gpus = self.job.layout.num_gpus + self.job.rollout.separate_gpus
        return self.job.workload.mean_tokens / (self.step_s * num_gpus)


def refused(job: Job) -> tuple[str, ...]:
    """Why Megatron or SGLang would not even start; memory and time mean nothing then."""
    return (
        *layout_problems(job.shape, job.layout),
        *_trainer_problems(job),
        *_server_problems(job),
    )


def make_plan(
    job: Job,
    efficiency: Efficiency | None = None,
    server_efficiency: ServerEfficiency | None = None,
    memory: MemoryPlan | None = None,
) -> Plan:
    """Plan a job that `refused` finds nothing wrong with.

    Args:
        job: what to plan.
        efficiency: of the trainer; the stated ones by default.
        server_efficiency: of the servers; the stated ones by default.
        memory: of this job, where it is known already.
    """
    efficiency = efficiency or Efficiency()
    memory = memory or plan_memory(job, micro_batches_per_step(job, efficiency))
    rollout = rollout_time(job, memory.kv_tokens, server_efficiency or ServerEfficiency())
    update = update_time(job, efficiency)
    log_prob_s = log_prob_time(job, efficiency)
    phases = {"rollout": rollout.total_s, "log-prob": log_prob_s}
    if job.training.has_reference:
        phases["reference log-prob"] = log_prob_s
    if job.training.has_critic:
        phases |= {"values": log_prob_s, "critic update": update.total_s}
    phases |= {"update": update.total_s, "sync": sync_time(job)}
    training_s = sum(phases.values()) - rollout.total_s
    shares_gpus = not job.rollout.separate_gpus
    return Plan(
        job=job,
        problems=tuple(memory_problems(job, memory)),
        memory=memory,
        rollout=rollout,
        update=update,
        phases_s=phases,
        step_s=rollout.total_s + training_s if shares_gpus else max(rollout.total_s, training_s),
    )


def _trainer_problems(job: Job) -> tuple[str, ...]:
    tensor = job.layout.tensor
    if job.shape.num_experts and tensor > 1 and not job.training.sequence_parallel:
        return (f"TP{tensor} needs sequence_parallel in a mixture of experts",)
    return ()


def _server_problems(job: Job) -> tuple[str, ...]:
    tensor, num_gpus = job.rollout.tensor, job.rollout.separate_gpus or job.layout.num_gpus
    problems = []
    if num_gpus % tensor:
        problems.append(f"rollout TP{tensor} does not divide {num_gpus} GPUs")
    if job.shape.num_heads % tensor:
        heads = job.shape.num_heads
        problems.append(f"rollout TP{tensor} does not divide num_attention_heads ({heads})")
    return tuple(problems)
