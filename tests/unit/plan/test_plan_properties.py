"""What must hold for every layout, however it is drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from megatron_agent.plan.layout import Layout, layout_problems
from megatron_agent.plan.memory import MemoryPlan, plan_memory
from megatron_agent.plan.params import count_model, count_rank
from megatron_agent.plan.plan import make_plan
from megatron_agent.plan.records import Cluster, Gpu, Job, Rollout, Training, Workload
from megatron_agent.plan.shapes import shipped_names, shipped_shape

pytestmark = pytest.mark.unit

H200 = Gpu(
    name="H200", memory_gib=140.4, bf16_tflops=989.0, memory_gb_s=4800.0, nvlink_gb_s=450.0,
    sustained_matmul=0.7,
)  # fmt: skip
SIZES = st.sampled_from([1, 2, 4, 8])


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    shape = shipped_shape(draw(st.sampled_from(shipped_names())))
    tensor = draw(SIZES)
    layout = Layout(
        num_gpus=64,
        tensor=tensor,
        pipeline=draw(SIZES),
        context=draw(st.sampled_from([1, 2])),
        expert=draw(SIZES) if shape.num_experts else 1,
        expert_tensor=draw(st.sampled_from([1, tensor])) if shape.num_experts else tensor,
    )
    assume(not list(layout_problems(shape, layout)))
    budget = draw(st.sampled_from([4096, 8192, 16384]))
    return Job(
        shape=shape,
        cluster=Cluster(
            gpu=H200, gpus_per_node=8, num_nodes=8, network_gb_s=50.0, pcie_gb_s=55.0,
            host_memory_gib=2000.0,
        ),
        layout=layout,
        training=Training(
            micro_batch_tokens=budget,
            log_prob_tokens=budget,
            num_mini_batches=draw(SIZES),
            sequence_parallel=draw(st.booleans()),
            recompute_layers=draw(st.sampled_from([0, 1])),
            fused_kernels=draw(st.booleans()),
            has_reference=draw(st.booleans()),
        ),
        rollout=Rollout(tensor=draw(SIZES), memory_fraction=0.6, max_sequences=256),
        workload=Workload(
            num_groups=32, group_size=8, max_steps=20, mean_steps=draw(st.floats(1.0, 20.0)),
            max_prompt_tokens=2048, mean_prompt_tokens=900.0, max_response_tokens=512,
            mean_response_tokens=draw(st.floats(10.0, 500.0)),
        ),
    )  # fmt: skip


def totals(plan: MemoryPlan) -> dict[str, float]:
    return {phase.phase: phase.total for phase in plan.phases}


@given(jobs())
@settings(max_examples=60, deadline=None)
def test_the_ranks_of_a_layout_hold_the_whole_model(job: Job) -> None:
    layout, shape = job.layout, job.shape
    held = 0
    for stage in range(layout.pipeline):
        params = count_rank(shape, layout, stage)
        held += params.dense * layout.tensor + params.expert * layout.expert * layout.expert_tensor
    whole = count_model(shape)
    # Norms and routers are on every tensor-parallel rank; a tied embedding on both ends.
    copy = shape.vocab_size * shape.hidden_size if shape.tied_embeddings else 0
    assert whole <= held <= (whole + copy) * 1.01


@given(jobs())
@settings(max_examples=60, deadline=None)
def test_savings_save(job: Job) -> None:
    training = job.training
    plain = totals(plan_memory(job, 8))
    offload = {"param_offload": True, "optimizer_offload": True, "reference_offload": True}
    offloaded = plan_memory(replace(job, training=replace(training, **offload)), 8)
    for phase in ("log-prob", "update", "sync"):
        assert totals(offloaded)[phase] <= plain[phase] + 1
    again = plan_memory(replace(job, training=replace(training, recompute_layers=1)), 8)
    assert totals(again)["update"] <= plain["update"] * 1.001
    larger = replace(training, micro_batch_tokens=2 * training.micro_batch_tokens)
    assert totals(plan_memory(replace(job, training=larger), 8))["update"] > plain["update"]


@given(jobs())
@settings(max_examples=60, deadline=None)
def test_every_plan_has_sensible_numbers(job: Job) -> None:
    plan = make_plan(job)
    assert all(size >= 0 for phase in plan.memory.phases for size in phase.parts.values())
    assert all(seconds > 0 for seconds in plan.phases_s.values())
    assert 0 < plan.update.mfu < 0.75
    assert 0 <= plan.update.bubble < 1
    assert plan.step_s >= max(plan.phases_s.values())
    assert 1 <= plan.rollout.concurrency <= 256


@given(jobs())
@settings(max_examples=40, deadline=None)
def test_more_rows_take_longer(job: Job) -> None:
    twice = replace(job, workload=replace(job.workload, num_groups=2 * job.workload.num_groups))
    assert make_plan(twice).step_s >= make_plan(job).step_s
