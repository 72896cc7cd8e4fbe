"""The planner beside published measurements: ``python benchmarks/plan_vs_published.py``.

Prints Markdown. Rows are public runs of verl and NeMo-RL with Megatron; docs/plan.md says where
they stand, which of them the planner's efficiencies were set from, and what a row leaves open.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from megatron_agent.plan.layout import Layout
from megatron_agent.plan.markdown import markdown
from megatron_agent.plan.memory import plan_memory
from megatron_agent.plan.plan import Plan, make_plan
from megatron_agent.plan.records import GIB, Cluster, Gpu, Job, Rollout, Training, Workload
from megatron_agent.plan.shapes import shipped_shape
from megatron_agent.plan.training_time import sync_time

H100 = Gpu(
    name="H100", memory_gib=79.6, bf16_tflops=989.0, memory_gb_s=3350.0, nvlink_gb_s=450.0,
    sustained_matmul=0.70,
)  # fmt: skip
# A seventh of an H100's arithmetic with its memory and power: products run near the peak.
H20 = Gpu(
    name="H20", memory_gib=95.6, bf16_tflops=148.0, memory_gb_s=4000.0, nvlink_gb_s=450.0,
    sustained_matmul=0.94,
)  # fmt: skip
NOT_FUSED = "without fused RoPE"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published run and how it was set up; None where nothing was published."""

    name: str
    model: str
    gpu: Gpu
    num_gpus: int
    layout: dict[str, int]
    response: float
    """Mean tokens of a response, as docs/plan.md derives them."""
    prompt: float = 150.0
    max_response: int = 8192
    spread: float = 0.8
    num_rows: int = 8192
    num_steps: int = 16
    budget: int = 20480
    log_prob_budget: int = 61440
    offload: bool = True
    recompute: int = 0
    reference: bool = False
    rollout_tensor: int = 1
    fraction: float = 0.6
    max_sequences: int = 1024
    update_s: float | None = None
    log_prob_s: float | None = None
    generation_s: float | None = None
    step_s: float | None = None
    fits: bool = True
    note: str = ""

    def job(self) -> Job:
        tensor = self.layout.get("tensor", 1)
        expert_tensor = 1 if "expert" in self.layout else tensor
        job = Job(
            shape=shipped_shape(self.model),
            cluster=Cluster(
                gpu=self.gpu, gpus_per_node=8, num_nodes=self.num_gpus // 8, network_gb_s=50.0,
                pcie_gb_s=55.0, host_memory_gib=2000.0,
            ),
            layout=Layout(num_gpus=self.num_gpus, expert_tensor=expert_tensor, **self.layout),
            training=Training(
                micro_batch_tokens=self.budget, log_prob_tokens=self.log_prob_budget,
                num_mini_batches=self.num_steps, recompute_layers=self.recompute,
                param_offload=self.offload, optimizer_offload=self.offload,
                reference_offload=self.offload, fused_kernels=True, has_reference=self.reference,
            ),
            rollout=Rollout(
                tensor=self.rollout_tensor, memory_fraction=1.0, max_sequences=self.max_sequences
            ),
            workload=Workload(
                num_groups=self.num_rows, group_size=1, max_steps=1, mean_steps=1.0,
                max_prompt_tokens=2048, mean_prompt_tokens=self.prompt,
                max_response_tokens=self.max_response, mean_response_tokens=self.response,
                env_step_s=0.0, row_spread=self.spread,
            ),
        )  # fmt: skip
        # These servers are vLLM's, whose fraction is of all memory; ours is of what is free.
        rollout = plan_memory(job, 16).phases[0].parts
        free = rollout["server weights"] + rollout["KV cache"]
        total = self.fraction * self.gpu.memory_gib * GIB
        return replace(job, rollout=replace(job.rollout, memory_fraction=total / free))


MATH = {"model": "qwen2.5-7b-instruct", "gpu": H100, "response": 1370.0}
GRPO = {
    "model": "qwen2.5-7b-instruct", "gpu": H100, "num_gpus": 8, "prompt": 130.0, "response": 700.0,
    "budget": 10240, "log_prob_budget": 102400, "reference": True,
}  # fmt: skip
LONG = {
    "gpu": H20, "max_response": 20480, "budget": 22528, "log_prob_budget": 22528, "fraction": 0.9,
    "num_gpus": 32,
}  # fmt: skip
MOE = {
    "model": "qwen3-30b-a3b", "gpu": H100, "num_gpus": 32, "response": 1370.0, "recompute": 1,
    "log_prob_budget": 30720, "rollout_tensor": 4,
}  # fmt: skip
NEMO = {
    "gpu": H100, "num_rows": 2048, "num_steps": 4, "max_response": 4096, "budget": 4096,
    "log_prob_budget": 8192, "recompute": 1, "reference": True,
}  # fmt: skip

RUNS: tuple[Run, ...] = (
    Run(name="DAPO 7B #16", num_gpus=8, layout={"tensor": 2}, budget=10240, log_prob_budget=102400,
        update_s=168, log_prob_s=57, generation_s=148, step_s=389, **MATH),
    Run(name="DAPO 7B #7", num_gpus=8, layout={"tensor": 4},
        update_s=167, log_prob_s=67, generation_s=144, step_s=401, **MATH),
    Run(name="DAPO 7B #5", num_gpus=8, layout={"tensor": 4}, note=NOT_FUSED,
        update_s=203, log_prob_s=84, generation_s=144, step_s=450, **MATH),
    Run(name="DAPO 7B #8", num_gpus=16, layout={"tensor": 4}, log_prob_budget=102400,
        update_s=93, log_prob_s=38, generation_s=99, step_s=249, **MATH),
    Run(name="DAPO 7B #9", num_gpus=32, layout={"tensor": 4}, log_prob_budget=102400,
        update_s=55, log_prob_s=24, generation_s=74, step_s=175, **MATH),
    Run(name="DAPO 7B #18", num_gpus=32, layout={"tensor": 2}, budget=10240,
        log_prob_budget=102400, update_s=66, log_prob_s=28, generation_s=76, step_s=196, **MATH),
    Run(name="DAPO 7B #12", num_gpus=8, layout={"tensor": 4, "pipeline": 2},
        log_prob_budget=102400, update_s=185, log_prob_s=74, generation_s=146, step_s=426, **MATH),
    Run(name="DAPO 7B #17", num_gpus=8, layout={"tensor": 2, "context": 2}, budget=10240,
        log_prob_budget=30720, update_s=169, log_prob_s=65, generation_s=145, step_s=402, **MATH),
    Run(name="DAPO 7B #11", num_gpus=8, layout={"tensor": 4, "context": 2}, budget=18432,
        log_prob_budget=102400, note=NOT_FUSED,
        update_s=249, log_prob_s=114, generation_s=143, step_s=525, **MATH),
    Run(name="DAPO 7B #20", num_gpus=32, layout={"tensor": 2, "context": 2}, budget=10240,
        log_prob_budget=30720, update_s=174, log_prob_s=55, generation_s=128, step_s=400,
        **{**MATH, "gpu": H20}),
    Run(name="DAPO 7B #19", num_gpus=32, layout={"tensor": 4, "context": 2}, budget=10240,
        log_prob_budget=10240, rollout_tensor=4, update_s=137, log_prob_s=58, generation_s=105,
        step_s=336, **{**MATH, "gpu": H20}),
    Run(name="GRPO 7B #2", layout={"tensor": 4}, offload=False,
        update_s=102, log_prob_s=41.7, generation_s=68.2, step_s=280, **GRPO),
    Run(name="GRPO 7B #14", layout={"tensor": 2}, recompute=1,
        update_s=122, generation_s=63.8, step_s=318, **{**GRPO, "log_prob_budget": 30720}),
    Run(name="DAPO 14B #7", model="qwen2.5-14b-instruct", layout={"tensor": 8, "pipeline": 2},
        response=791, rollout_tensor=4, update_s=265, **LONG),
    Run(name="DAPO 14B #8", model="qwen3-14b", layout={"tensor": 4}, response=3510,
        rollout_tensor=4, update_s=934, generation_s=1047, **LONG),
    Run(name="DAPO 32B #6", model="qwen2.5-32b-instruct", layout={"tensor": 8, "pipeline": 2},
        response=1544, rollout_tensor=8, update_s=840, log_prob_s=315, generation_s=643, **LONG),
    Run(name="DAPO 32B #7", model="qwen2.5-32b-instruct", layout={"tensor": 8, "pipeline": 2},
        response=1430, rollout_tensor=8, update_s=422, log_prob_s=172, generation_s=291,
        **{**LONG, "num_gpus": 64}),
    Run(name="DAPO 30B-A3B #11", layout={"expert": 8}, budget=30720, num_steps=4,
        update_s=54, log_prob_s=21, **MOE),
    Run(name="DAPO 30B-A3B #14", layout={"expert": 8}, budget=10240,
        update_s=79, log_prob_s=21, **MOE),
    Run(name="DAPO 30B-A3B #7", layout={"tensor": 4, "expert": 32}, budget=15360,
        update_s=105, log_prob_s=45, generation_s=308, step_s=486,
        **{**MOE, "rollout_tensor": 2, "log_prob_budget": 102400, "recompute": 0}),
    Run(name="NeMo-RL Llama 8B", model="llama-3.1-8b-instruct", num_gpus=16,
        layout={"pipeline": 2}, response=996, step_s=92.8, **NEMO),
    Run(name="NeMo-RL Qwen3 32B", model="qwen3-32b", num_gpus=32,
        layout={"tensor": 4, "pipeline": 4}, response=3200, spread=0.3, rollout_tensor=4,
        step_s=376, **NEMO),
    Run(name="NeMo-RL 30B-A3B", model="qwen3-30b-a3b", num_gpus=32, layout={"expert": 8},
        response=3150, spread=0.3, rollout_tensor=2, step_s=192, **NEMO),
)  # fmt: skip

FITS: tuple[Run, ...] = (
    Run(name="GRPO 7B #2", layout={"tensor": 4}, offload=False, **GRPO),
    Run(name="GRPO 7B #14", layout={"tensor": 2}, recompute=1, **GRPO),
    Run(name="GRPO 7B #9", layout={"tensor": 2}, **GRPO),
    Run(name="GRPO 7B #6", layout={"tensor": 2, "context": 2}, fraction=0.5, **GRPO),
    Run(name="GRPO 7B #4", layout={"tensor": 2, "context": 2}, offload=False, fraction=0.8,
        fits=False, **GRPO),
    Run(name="GRPO 7B #5", layout={"tensor": 2, "context": 2}, offload=False, fraction=0.5,
        fits=False, **GRPO),
    Run(name="GRPO 7B #10", layout={"tensor": 2}, offload=False, fits=False, **GRPO),
    Run(name="GRPO 7B #11", layout={"tensor": 2}, offload=False, recompute=1, fits=False, **GRPO),
)  # fmt: skip

SYNCS: tuple[tuple[str, str, bool, float], ...] = (
    ("7B, NCCL", "qwen2.5-7b-instruct", True, 5.75),
    ("32B, NCCL", "qwen2.5-32b-instruct", True, 17.9),
    ("72B, NCCL", "qwen2.5-72b-instruct", True, 28.8),
    ("30B-A3B, NCCL", "qwen3-30b-a3b", True, 32.2),
    ("7B, colocated", "qwen2.5-7b-instruct", False, 3.1),
    ("32B, colocated", "qwen2.5-32b-instruct", False, 6.2),
    ("30B-A3B, colocated", "qwen3-30b-a3b", False, 8.0),
)


def main() -> None:
    """Print all tables."""
    print("\n\n".join(tables()))


def tables() -> list[str]:
    """All tables as Markdown, with a line on the error under each."""
    return [_times(), _memory(), _syncs()]


def _times() -> str:
    table = Table("run", "GPUs", "layout", "update s", "log-prob s", "generation s", "iteration s")
    errors: dict[str, list[float]] = {name: [] for name in ("update", "log-prob", "gen", "step")}
    for run in RUNS:
        plan = make_plan(run.job())
        cells = [
            _pair(run.update_s, plan.update.total_s, errors["update"]),
            _pair(run.log_prob_s, plan.phases_s["log-prob"], errors["log-prob"]),
            _pair(run.generation_s, plan.rollout.total_s, errors["gen"]),
            _pair(run.step_s, plan.step_s, errors["step"]),
        ]
        name = f"{run.name} ({run.note})" if run.note else run.name
        table.add_row(name, f"{run.num_gpus} {run.gpu.name}", str(plan.job.layout), *cells)
    words = (("update", "update"), ("log-prob", "log-prob"), ("gen", "generation"),
             ("step", "iteration"))  # fmt: skip
    lines = [f"- {word}: {_error_words(errors[key])}" for key, word in words]
    return "\n".join(["Published / predicted (error).", "", markdown(table), "", *lines])


def _memory() -> str:
    table = Table("run", "layout", "offload", "fraction", "published", "predicted peak, GiB")
    right = 0
    for run in FITS:
        plan = make_plan(run.job())
        peak = plan.memory.peak
        fits = peak.total < run.gpu.memory_gib * GIB
        right += fits == run.fits
        table.add_row(
            run.name,
            str(plan.job.layout),
            "both" if run.offload else "none",
            f"{run.fraction:.1f}",
            "runs" if run.fits else "out of memory",
            f"{peak.total / GIB:.1f} of {run.gpu.memory_gib} ({peak.phase})",
        )
    verdicts = f"{right} of {len(FITS)} verdicts agree."
    return "\n".join([markdown(table), "", verdicts])


def _syncs() -> str:
    table = Table("weight sync", "published s", "predicted s (error)")
    errors: list[float] = []
    base = RUNS[0].job()
    for name, model, is_separate, published in SYNCS:
        rollout = replace(base.rollout, separate_gpus=8 if is_separate else 0)
        seconds = sync_time(replace(base, shape=shipped_shape(model), rollout=rollout))
        errors.append(seconds / published - 1)
        table.add_row(name, f"{published:g}", f"{seconds:.1f} ({errors[-1]:+.0%})")
    return "\n".join([markdown(table), "", f"- weight sync: {_error_words(errors)}"])


def _pair(published: float | None, predicted: float, errors: list[float]) -> str:
    if published is None:
        return ""
    errors.append(predicted / published - 1)
    return f"{published:.0f} / {predicted:.0f} ({errors[-1]:+.0%})"


def _error_words(errors: Sequence[float]) -> str:
    within = sum(abs(error) <= 0.3 for error in errors)
    mean = sum(map(abs, errors)) / len(errors)
    bias = math.exp(sum(math.log1p(error) for error in errors) / len(errors)) - 1
    worst = max(errors, key=abs)
    return (
        f"{within} of {len(errors)} within 30 %; mean error {mean:.0%}, bias {bias:+.0%}, "
        f"worst {worst:+.0%}"
    )


def plans(runs: Iterable[Run] = RUNS) -> list[Plan]:
    """The plans behind the table, for tests."""
    return [make_plan(run.job()) for run in runs]


if __name__ == "__main__":
    main()
