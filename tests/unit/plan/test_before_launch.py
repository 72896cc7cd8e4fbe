"""A job that would end without memory does not get into the queue."""

from __future__ import annotations

import pytest

from megatron_agent.config import Findings, compose_config
from megatron_agent.plan.before_launch import check_before_launch

pytestmark = pytest.mark.unit

MEGATRON = "actor_rollout_ref.actor.megatron"
LARGE = ("experiment=webshop_72b", "cluster=8x8_h100")


def findings_of(*overrides: str) -> Findings:
    findings = Findings()
    check_before_launch(compose_config(overrides), findings)
    return findings


def test_a_run_that_fits_passes():
    findings = findings_of(*LARGE)
    assert not findings.problems
    assert not findings.warnings


def test_a_layout_that_does_not_fit_is_refused_with_the_reason():
    findings = findings_of(
        *LARGE,
        f"{MEGATRON}.tensor_model_parallel_size=8",
        f"{MEGATRON}.pipeline_model_parallel_size=1",
        f"{MEGATRON}.param_offload=false",
        f"{MEGATRON}.optimizer_offload=false",
    )
    (problem, *_) = findings.problems
    assert "must be a layout that fits" in str(problem)
    assert "megatron-agent plan --search" in str(problem)


def test_a_run_without_gpus_is_not_planned():
    findings = findings_of("experiment=frozenlake_cpu")
    assert not findings.problems
    assert not findings.warnings


def test_what_cannot_be_planned_is_a_warning():
    findings = findings_of(*LARGE, "plan=null")
    assert not findings.problems
    assert "not planned" in findings.warnings[0]
