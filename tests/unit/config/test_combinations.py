"""Settings that exclude one another, and the facts of a cluster: what the messages say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_agent.config import Findings

pytestmark = pytest.mark.unit

Messages = Callable[..., list[str]]

ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
TRANSFORMER = f"{MEGATRON}.override_transformer_config"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
FULL = f"{TRANSFORMER}.recompute_granularity=full"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            (f"{MEGATRON}.context_parallel_size=2", f"{MEGATRON}.use_remove_padding=false"),
            r"megatron.use_remove_padding must be true with context parallelism \(2\), got False",
        ),
        (
            (f"{MEGATRON}.virtual_pipeline_model_parallel_size=2",),
            r"virtual_pipeline_model_parallel_size must be null without a pipeline .* got 2",
        ),
        (
            (f"{TRANSFORMER}.recompute_granularity=some",),
            r"recompute_granularity must be full, selective or null, got 'some'",
        ),
        (
            (FULL, f"{TRANSFORMER}.recompute_num_layers=1"),
            r"recompute_method must be uniform or block with full recompute, got None",
        ),
        (
            (FULL, f"{TRANSFORMER}.recompute_method=uniform"),
            r"recompute_num_layers must be >= 1 with full recompute, got None. Use 1.",
        ),
        (
            (
                f"{TRANSFORMER}.recompute_granularity=selective",
                f"{TRANSFORMER}.recompute_num_layers=1",
            ),
            r"recompute_num_layers must be null with selective recompute, got 1",
        ),
        (
            (f"{MODEL}.lora.rank=8", f"{MEGATRON}.vanilla_mbridge=true"),
            r"vanilla_mbridge must be false with LoRA \(rank 8\), got True",
        ),
        (
            (f"{MODEL}.lora.rank=8", f"{ROLLOUT}.checkpoint_engine.backend=delta_sharded"),
            r"backend must not be delta_sharded with LoRA \(rank 8\)",
        ),
        (
            (f"{ROLLOUT}.pipeline_model_parallel_size=2",),
            r"rollout.pipeline_model_parallel_size must be 1: verl cuts SGLang by tensors, got 2",
        ),
        (
            (f"{ROLLOUT}.expert_parallel_size=4",),
            r"expert_parallel_size must be 1 or tensor x data .*\(1 x 1\), got 4. Use 1.",
        ),
        (
            (f"{ROLLOUT}.quantization=int4",),
            r"rollout.quantization must be fp8 or null, got 'int4'",
        ),
        (
            (
                f"{MEGATRON}.router_replay.mode=R2",
                "algorithm.rollout_correction.bypass_mode=true",
            ),
            r"bypass_mode must be false with router replay R2.*Set it to false, or use R3",
        ),
        (
            (f"{MODEL}.use_fused_kernels=true", f"{ACTOR}.calculate_sum_pi_squared=true"),
            r"calculate_sum_pi_squared must be false with fused kernels",
        ),
        ((f"{MEGATRON}.expert_model_parallel_size=2",), r"must be 1: the model is no mixture of"),
    ],
)  # fmt: skip
def test_a_combination_that_the_stack_refuses_is_refused_at_once(
    problems_of: Messages, overrides: tuple[str, ...], message: str
) -> None:
    found = [text for text in problems_of(*overrides) if re.search(message, text)]
    assert len(found) == 1, problems_of(*overrides)


def test_dynamic_context_parallelism_names_all_that_it_excludes(problems_of: Messages) -> None:
    messages = problems_of(
        f"{MEGATRON}.dynamic_context_parallel=true",
        f"{MEGATRON}.use_remove_padding=false",
        f"{MEGATRON}.pad_to_length=true",
        f"{MEGATRON}.pipeline_model_parallel_size=2",
        f"{MEGATRON}.virtual_pipeline_model_parallel_size=2",
    )
    for key, rule in (
        ("use_remove_padding", "must be true with dynamic"),
        ("pad_to_length", "must be false with dynamic"),
        ("virtual_pipeline_model_parallel_size", "must be null with dynamic"),
        ("max_seqlen_per_dp_cp_rank", "must be >= 1 with dynamic"),
    ):
        assert [text for text in messages if f"{key} {rule}" in text], messages


@pytest.mark.parametrize(
    "overrides",
    [
        (f"{MODEL}.lora.rank=8",),
        (f"{MODEL}.lora.rank=8", f"{MODEL}.use_fused_kernels=true"),
        (
            f"{MEGATRON}.context_parallel_size=2",
            "trainer.device=cuda",
            f"{ROLLOUT}.engine_kwargs.sglang.device=cuda",
            # Two ranks hold half of the longest row each.
            "data.max_prompt_length=512",
            "data.max_response_length=128",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=320",
        ),
        (f"{ROLLOUT}.quantization=fp8",),
        (f"{TRANSFORMER}.recompute_granularity=selective",),
        (
            f"{MEGATRON}.pipeline_model_parallel_size=2",
            f"{MEGATRON}.virtual_pipeline_model_parallel_size=1",
        ),
        (
            FULL,
            f"{TRANSFORMER}.recompute_method=block",
            f"{TRANSFORMER}.recompute_num_layers=1",
        ),
    ],
)
def test_what_the_stack_takes_is_taken(problems_of: Messages, overrides: tuple[str, ...]) -> None:
    assert problems_of(*overrides) == []


def test_fused_kernels_that_verl_turns_off_are_a_warning(
    findings_of: Callable[..., Findings],
) -> None:
    findings = findings_of(
        f"{MODEL}.use_fused_kernels=true", f"{MEGATRON}.use_remove_padding=false"
    )
    assert any("use_fused_kernels has no effect" in text for text in findings.warnings)


def test_a_mixture_of_experts_needs_sequence_parallelism(
    problems_of: Messages, model_folder: Path
) -> None:
    path = model_folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_experts": 8}))
    messages = problems_of(f"{MEGATRON}.expert_model_parallel_size=3")
    assert any("must be true for a mixture of experts with tensor" in text for text in messages)
    assert any("must divide the model's num_experts (8), got 3" in text for text in messages)


def test_facts_of_a_cluster_are_checked(problems_of: Messages) -> None:
    messages = problems_of("plan.memory_margin=0.9", "plan.row_spread=wide")
    assert any("plan.memory_margin must be in [0, 0.5], got 0.9. Use 0.08." in t for t in messages)
    assert any("plan.row_spread must be a number, got 'wide'" in t for t in messages)
