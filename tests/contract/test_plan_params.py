"""Parameter counts of the planner equal those of models that Megatron builds, rank by rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_agent.plan.layout import Layout, layout_problems
from megatron_agent.plan.params import count_adapters, count_rank
from megatron_agent.plan.shapes import SHAPES_DIR, ModelShape, read_shape

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 320,
}
FAMILIES: dict[str, dict[str, Any]] = {
    # Fewer key-value heads than the largest tensor-parallel sizes.
    "qwen2 tied": {"model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 4, "tie_word_embeddings": False},
    "qwen3": {
        "model_type": "qwen3", "num_key_value_heads": 4, "head_dim": 16,
        "tie_word_embeddings": False, "attention_bias": False,
    },
    "llama": {"model_type": "llama", "num_key_value_heads": 8, "tie_word_embeddings": False},
    "qwen3_moe": {
        "model_type": "qwen3_moe", "num_key_value_heads": 4, "head_dim": 16, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 48, "tie_word_embeddings": False,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
}  # fmt: skip
ARCHITECTURES = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def small_config(family: str) -> dict[str, Any]:
    config = {**SMALL, **FAMILIES[family]}
    return {**config, "architectures": [ARCHITECTURES[config["model_type"]]]}


def all_cases() -> list[dict[str, Any]]:
    cases = []
    for family in FAMILIES:
        for tensor in (1, 2, 4, 8):
            for pipeline in (1, 2, 4):
                for expert, expert_tensor in ((1, tensor), (2, 1), (8, 1), (2, tensor)):
                    if expert > 1 and family != "qwen3_moe":
                        continue
                    layout = {
                        "num_gpus": 64, "tensor": tensor, "pipeline": pipeline, "context": 1,
                        "expert": expert, "expert_tensor": expert_tensor,
                    }  # fmt: skip
                    cases.append({"config": small_config(family), "lora_rank": 0, **layout})
    lora = {
        "num_gpus": 8,
        "tensor": 2,
        "pipeline": 2,
        "context": 1,
        "expert": 1,
        "expert_tensor": 2,
    }
    cases += [{"config": small_config(f), "lora_rank": 8, **lora} for f in ("qwen2", "qwen3")]
    real = json.loads((SHAPES_DIR / "qwen2.5-72b-instruct.json").read_text(encoding="utf-8"))
    cases.append({"config": real, "lora_rank": 0, **lora, "tensor": 4, "expert_tensor": 4})
    return cases


@pytest.fixture(scope="module")
def built() -> list[tuple[dict[str, Any], list[dict[str, int]]]]:
    """Every case and what Megatron built for it; one process, as its imports take longest."""
    cases = all_cases()
    job = Path(__file__).with_name("plan_params_job.py")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(job)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "VERL_PLATFORM": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return list(zip(cases, json.loads(done.stdout), strict=True))


def test_counts_equal_those_of_models_that_megatron_builds(
    built: list[tuple[dict[str, Any], list[dict[str, int]]]], tmp_path: Path
) -> None:
    assert len(built) > 70
    for case, stages in built:
        shape, layout = shape_of(case, tmp_path), layout_of(case)
        assert list(layout_problems(shape, layout)) == []
        for stage, megatrons in enumerate(stages):
            ours = count_rank(shape, layout, stage)
            adapters = count_adapters(shape, layout, case["lora_rank"])
            assert (ours.dense + adapters, ours.expert) == (
                megatrons["dense"],
                megatrons["expert"],
            ), f"{case['config']['model_type']} {layout}, stage {stage}"
            if case["lora_rank"]:
                assert megatrons["trained"] == adapters


def layout_of(case: dict[str, Any]) -> Layout:
    sizes = ("num_gpus", "tensor", "pipeline", "context", "expert", "expert_tensor")
    return Layout(**{name: case[name] for name in sizes})


def shape_of(case: dict[str, Any], folder: Path) -> ModelShape:
    path = folder / "config.json"
    path.write_text(json.dumps(case["config"]), encoding="utf-8")
    return read_shape(path, "case")
