"""Which layouts are found, which are not, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from megatron_agent.plan.plan import Plan, make_plan, refused
from megatron_agent.plan.records import Job
from megatron_agent.plan.report import plan_data, plan_text, search_data, search_text
from megatron_agent.plan.search import SearchResult, search

pytestmark = pytest.mark.unit

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def found() -> tuple[Job, SearchResult]:
    from megatron_agent.plan.command import job_from

    job = job_from(["experiment=webshop_72b", "cluster=8x8_h100"])
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
    from megatron_agent.plan.command import job_from

    job, result = found
    lines = search_text(job, result).splitlines()
    overrides = [line.strip() for line in lines if line.strip().startswith("actor_rollout_ref.")]
    planned = job_from(["experiment=webshop_72b", "cluster=8x8_h100", *overrides])
    best = result.fitting[0].job
    assert planned.layout == best.layout
    assert make_plan(planned).memory.peak.total == pytest.approx(
        result.fitting[0].memory.peak.total
    )


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
