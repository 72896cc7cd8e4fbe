"""A plan as tables for people and as plain data for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from megatron_agent.plan.activations import layers_in_flight
from megatron_agent.plan.compute import Efficiency
from megatron_agent.plan.generation_time import ServerEfficiency
from megatron_agent.plan.overrides import overrides
from megatron_agent.plan.params import count_active, count_model
from megatron_agent.plan.plan import Plan
from megatron_agent.plan.records import GIB, Job
from megatron_agent.plan.search import SearchResult
from megatron_agent.plan.training_time import sync_bytes

WIDTH = 118
NUM_FITTING, NUM_FAILING = 10, 14
_SEARCH_NOTES = (
    "Each fitting row is the fastest of its layout's variants. Times are a roofline's: good to "
    "about 30 % (docs/plan.md), better for comparing rows than for booking hours."
)


def plan_text(plan: Plan) -> str:
    """One plan: what it is for, memory and time by phase, and the verdict."""
    head = _head(plan.job, f", {plan.job.layout}; {_variant_words(plan.job)}")
    return _render([head, memory_table(plan), time_table(plan), _verdict(plan)])


def search_text(job: Job, result: SearchResult) -> str:
    """What a search found: layouts that fit, and the next ones with their reasons."""
    head = f"{_head(job)}\n{result.num_tried} variants tried, {len(result.fitting)} layouts fit."
    parts: list[Any] = [head]
    if result.fitting:
        parts.append(fitting_table(result.fitting[:NUM_FITTING]))
        lines = "\n  ".join(overrides(job, result.fitting[0].job))
        parts.append(f"The first as overrides, to add to those of this search:\n  {lines}\n")
    parts += [failing_table(result.failing[:NUM_FAILING]), _SEARCH_NOTES]
    return _render(parts)


def memory_table(plan: Plan) -> Table:
    """GiB on the fullest GPU, a column for each phase."""
    table = _table("GiB on the fullest GPU", "part")
    for phase in plan.memory.phases:
        table.add_column(phase.phase, justify="right")
    names = dict.fromkeys(name for phase in plan.memory.phases for name in phase.parts)
    for name in names:
        sizes = (phase.parts.get(name, 0.0) for phase in plan.memory.phases)
        table.add_row(name, *(f"{size / GIB:.1f}" if size else "" for size in sizes))
    table.add_section()
    table.add_row("total", *(f"{phase.total / GIB:.1f}" for phase in plan.memory.phases))
    usable = f"{plan.job.usable_bytes / GIB:.1f}"
    table.add_row("usable", *(usable for _ in plan.memory.phases))
    return table


def time_table(plan: Plan) -> Table:
    """Seconds by phase, with what explains them."""
    rollout, update = plan.rollout, plan.update
    notes = {
        "rollout": f"{plan.job.num_servers} servers, {rollout.concurrency:.0f} episodes at once "
        f"in each, {rollout.tokens_per_s_per_gpu:,.0f} generated tokens/s/GPU; waiting "
        f"{rollout.full_s:.0f} s, tail {rollout.tail_s:.0f} s, environment {rollout.env_s:.0f} s",
        "update": f"{plan.job.training.num_mini_batches} steps of {update.num_micro_batches} "
        f"micro-batches, bubble {update.bubble:.0%}, MFU {update.mfu:.2f}",
        "sync": f"{sync_bytes(plan.job) / 1e9:.0f} GB to each server",
    }
    table = _table("seconds of an iteration", "phase")
    table.add_column("s", justify="right")
    table.add_column("")
    for phase, seconds in plan.phases_s.items():
        table.add_row(phase, f"{seconds:.0f}", notes.get(phase, ""))
    table.add_section()
    rate = f"{plan.tokens_per_s_per_gpu:,.0f} trained tokens/s/GPU over the whole iteration"
    table.add_row("iteration", f"{plan.step_s:.0f}", rate)
    return table


def fitting_table(plans: Iterable[Plan]) -> Table:
    """One row a plan that fits."""
    table = _table("layouts that fit, fastest first", "layout")
    for name in ("micro-batch", "recompute", "offload", "rollout"):
        table.add_column(name, no_wrap=True)
    for name in ("s/iteration", "MFU", "peak GiB", "left", "KV tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for plan in plans:
        peak = plan.memory.peak.total
        table.add_row(
            str(plan.job.layout),
            *_variant(plan.job),
            f"{plan.step_s:.0f}",
            f"{plan.update.mfu:.2f}",
            f"{peak / GIB:.1f}",
            f"{(plan.job.usable_bytes - peak) / GIB:.1f}",
            f"{plan.memory.kv_tokens:,}",
        )
    return table


def failing_table(plans: Iterable[Plan]) -> Table:
    """One row a layout and offload that does not fit, whatever else is varied."""
    table = _table("layouts that do not fit, the nearest first", "layout")
    table.add_column("offload", no_wrap=True)
    table.add_column("why its best variant does not")
    for plan in plans:
        micro_batch, recompute, offload, rollout = _variant(plan.job)
        more = len(plan.problems) - 1
        also = f", and {more} more" if more else ""
        variant = f"micro-batch {micro_batch}, recompute {recompute}, rollout {rollout}"
        table.add_row(str(plan.job.layout), offload, f"{plan.problems[0]}{also}; {variant}")
    return table


def plan_data(plan: Plan) -> dict[str, Any]:
    """The same as `plan_text`, for JSON: bytes and seconds, unrounded."""
    job = plan.job
    return {
        "fits": plan.fits,
        "problems": list(plan.problems),
        "job": asdict(job),
        "layout": str(job.layout),
        "parameters": count_model(job.shape),
        "rows": {"mean": job.workload.mean_rows, "max": job.workload.max_rows},
        "usable_bytes": job.usable_bytes,
        "memory_bytes": {
            phase.phase: {**phase.parts, "total": phase.total} for phase in plan.memory.phases
        },
        "kv_tokens": plan.memory.kv_tokens,
        "host_bytes": plan.memory.host_bytes,
        "seconds": {**plan.phases_s, "iteration": plan.step_s},
        "rollout": asdict(plan.rollout),
        "update": asdict(plan.update),
        "sync_bytes": sync_bytes(job),
        "tokens_per_s_per_gpu": plan.tokens_per_s_per_gpu,
        "efficiency": {"trainer": asdict(Efficiency()), "servers": asdict(ServerEfficiency())},
    }


def search_data(result: SearchResult) -> dict[str, Any]:
    """The same as `search_text`, for JSON, with everything that was found."""
    return {
        "num_tried": result.num_tried,
        "fitting": [plan_data(plan) for plan in result.fitting],
        "failing": [plan_data(plan) for plan in result.failing],
    }


def _head(job: Job, configured: str = "") -> str:
    workload, layout, cluster = job.workload, job.layout, job.cluster
    servers = (
        f" and {job.rollout.separate_gpus} for the servers" if job.rollout.separate_gpus else ""
    )
    return (
        f"{job.shape.name}: {count_model(job.shape) / 1e9:.2f} B parameters, "
        f"{count_active(job.shape) / 1e9:.2f} B in a token's products.\n"
        f"{layout.num_gpus} x {cluster.gpu.name} for the trainer{servers}{configured}.\n"
        f"{workload.num_groups} groups x {workload.group_size} episodes: {workload.mean_rows:,} "
        f"rows expected, {workload.max_rows:,} at most, of {workload.mean_row_tokens:,.0f} tokens "
        f"(at most {workload.max_row_tokens:,})."
    )


def _verdict(plan: Plan) -> str:
    host = f"Host memory: {plan.memory.host_bytes / GIB:.0f} GiB in a node."
    in_flight = layers_in_flight(plan.job, 0, plan.update.num_micro_batches)
    activations = f"The first stage holds activations of {in_flight} layers at its peak."
    if plan.fits:
        left = (plan.job.usable_bytes - plan.memory.peak.total) / GIB
        margin = f"beside the margin of {plan.job.memory_margin:.0%}"
        return f"It fits; {left:.1f} GiB are left {margin}. {host} {activations}"
    reasons = "\n".join(f"  {number}. {text}" for number, text in enumerate(plan.problems, 1))
    return f"It does not fit:\n{reasons}\n{host} --search looks for layouts that do."


def _variant_words(job: Job) -> str:
    micro_batch, recompute, offload, rollout = _variant(job)
    return (
        f"micro-batch {micro_batch} tokens, recompute {recompute}, offload {offload}, "
        f"rollout {rollout}"
    )


def _variant(job: Job) -> tuple[str, str, str, str]:
    training = job.training
    offload = {
        (False, False): "none",
        (False, True): "optimizer",
        (True, False): "parameters",
        (True, True): "both",
    }[training.param_offload, training.optimizer_offload]
    recompute = "full" if training.recompute_layers else "none"
    return f"{training.micro_batch_tokens:,}", recompute, offload, f"TP{job.rollout.tensor}"


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    return table


def _render(parts: Iterable[Any]) -> str:
    out = StringIO()
    # Fixed width and no colours: the same text in a terminal, a file and a test.
    console = Console(file=out, width=WIDTH, color_system=None, highlight=False)
    for part in parts:
        console.print(part, markup=False) if isinstance(part, str) else console.print(part)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join(lines).strip("\n")
