"""Which layouts are found, which are not, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from megatron_agent.plan.command import job_from
from megatron_agent.plan.overrides import overrides
from megatron_agent.plan.plan import Plan, make_plan, refused
from megatron_agent.plan.records import Job
from megatron_agent.plan.report import plan_data, plan_text, search_data, search_text
from megatron_agent.plan.search import SearchResult, search

pytestmark = pytest.mark.unit

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def found() -> tuple[Job, SearchResult]:
    job = job_from(["experiment=webshop_72b"])
    return job, search(job)


def test_a_72b_model_fits_eight_nodes_in_three_ways_and_more(
    found: tuple[Job, SearchResult],
) -> None:
    _, result = found
    assert len(result.fitting) >= 3
    assert all(plan.fits for plan in result.fitting)
    times = [plan.step_s for plan in result.fitting]
    assert times == sorted(times)


def test_the_text_says_why_one_stage_without_offload_does_not_fit(
    found: tuple[Job, SearchResult],
) -> None:
    text = " ".join(search_text(*found).split())
    assert "TP8 PP1 DP8 none sync needs 89.9 GiB of 73.2 usable (gradients 33.9, weights" in text


def test_what_is_listed_as_failing_has_no_variant_that_fits(
    found: tuple[Job, SearchResult],
) -> None:
    _, result = found
    failing = [layout_and_offload(plan) for plan in result.failing]
    assert len(set(failing)) == len(failing)
    assert not set(failing) & {layout_and_offload(plan) for plan in result.fitting}
    assert all(plan.problems for plan in result.failing)


def layout_and_offload(plan: Plan) -> tuple[str, bool, bool]:
    training = plan.job.training
    return str(plan.job.layout), training.param_offload, training.optimizer_offload


def test_the_first_layout_can_be_copied_as_overrides(found: tuple[Job, SearchResult]) -> None:
    job, result = found
    lines = search_text(job, result).splitlines()
    printed = [line.strip() for line in lines if line.strip().startswith("actor_rollout_ref.")]
    assert job_from(["experiment=webshop_72b", *printed]) == result.fitting[0].job


@pytest.mark.parametrize("name", ["webshop_72b_fp8", "alfworld_32b_long", "alfworld_30b_a3b"])
def test_every_row_applied_as_overrides_plans_the_same(name: str) -> None:
    base = [f"experiment={name}"]
    job = job_from(base)
    for plan in search(job).fitting[:3]:
        assert job_from([*base, *overrides(job, plan.job)]) == plan.job


def test_virtual_stages_of_the_job_are_searched_and_can_be_left(make_job: MakeJob) -> None:
    job = make_job(num_nodes=2, pipeline=2, virtual_pipeline=2, micro_batch_tokens=16384)
    result = search(job)
    assert {plan.job.layout.virtual_pipeline for plan in result.fitting} == {1, 2}
    assert all(plan.job.layout.pipeline > 1 for plan in result.fitting if virtual_of(plan) > 1)
    flat = next(plan.job for plan in result.fitting if virtual_of(plan) == 1)
    key = "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size"
    assert f"{key}=null" in overrides(job, flat)


def virtual_of(plan: Plan) -> int:
    return plan.job.layout.virtual_pipeline


def test_a_micro_batch_of_two_context_parallel_ranks_holds_half_a_row(make_job: MakeJob) -> None:
    job = make_job(max_prompt_tokens=30208, micro_batch_tokens=30720, log_prob_tokens=30720)
    plans = (*search(job).fitting, *search(job).failing)
    halves = [plan.job.training for plan in plans if plan.job.layout.context == 2]
    assert min(training.micro_batch_tokens for training in halves) == 15360


def test_passes_without_gradients_follow_the_micro_batch_unless_they_are_set(
    make_job: MakeJob,
) -> None:
    following = search(make_job(log_prob_tokens=8192)).fitting
    assert all(
        plan.job.training.log_prob_tokens == plan.job.training.micro_batch_tokens
        for plan in following
    )
    assert {plan.job.training.log_prob_tokens for plan in search(make_job()).fitting} == {16384}


def test_short_rows_are_not_cut_and_long_ones_may_be(make_job: MakeJob) -> None:
    small = make_job(num_nodes=1)
    short = search(small)
    assert {plan.job.layout.context for plan in short.fitting} == {1}
    long = search(replace(small, workload=replace(small.workload, max_prompt_tokens=32768)))
    assert {plan.job.layout.context for plan in long.fitting} > {1}


def test_experts_are_searched_too(make_job: MakeJob) -> None:
    result = search(make_job("qwen3-30b-a3b", num_nodes=4, rollout_tensor=4))
    assert {plan.job.layout.expert for plan in result.fitting} & {4, 8, 16}


def test_a_layout_that_megatron_refuses_is_not_planned(make_job: MakeJob) -> None:
    assert refused(make_job(tensor=8)) == ("TP8 does not divide num_attention_heads (28)",)
    assert refused(make_job(rollout_tensor=16)) == (
        "rollout TP16 does not divide 8 GPUs",
        "rollout TP16 does not divide num_attention_heads (28)",
    )


def test_separate_servers_hide_the_faster_side(make_job: MakeJob) -> None:
    plan = make_plan(make_job(separate_gpus=8))
    training_s = sum(plan.phases_s.values()) - plan.phases_s["rollout"]
    assert plan.step_s == max(plan.phases_s["rollout"], training_s)


def test_the_reference_and_the_critic_are_phases(make_job: MakeJob) -> None:
    plan = make_plan(make_job(has_reference=True, has_critic=True))
    assert list(plan.phases_s) == [
        "rollout", "log-prob", "reference log-prob", "values", "critic update", "update", "sync",
    ]  # fmt: skip


def test_text_and_data_say_the_same(make_job: MakeJob) -> None:
    plan = make_plan(make_job(tensor=2, param_offload=True, optimizer_offload=True))
    text, data = plan_text(plan), plan_data(plan)
    assert "It fits" in text and data["fits"] is True
    assert data["rows"] == {"mean": 640, "max": 1280}
    assert "640 rows expected, 1,280 at most" in " ".join(text.split())
    assert data["seconds"]["iteration"] == plan.step_s
    assert data["memory_bytes"]["update"]["total"] == plan.memory.phases[2].total


def test_a_plan_that_does_not_fit_numbers_its_reasons(make_job: MakeJob) -> None:
    text = plan_text(make_plan(make_job("qwen2.5-72b-instruct", tensor=8)))
    assert "It does not fit:\n  1. " in text
    assert "--search looks for layouts that do." in text


def test_search_data_has_all_that_was_found(found: tuple[Job, SearchResult]) -> None:
    data = search_data(found[1])
    assert len(data["fitting"]) == len(found[1].fitting)
    assert data["failing"][0]["problems"]
