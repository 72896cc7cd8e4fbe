"""Shapes of models, their parameters, and which cuts are possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_agent.errors import ConfigError
from megatron_agent.plan.layout import Layout, layout_problems
from megatron_agent.plan.params import count_active, count_adapters, count_model, count_rank
from megatron_agent.plan.shapes import SHAPES_DIR, read_shape, shipped_names, shipped_shape

pytestmark = pytest.mark.unit

PUBLISHED = {
    "llama-3.1-70b-instruct": 70_553_706_496,
    "llama-3.1-8b-instruct": 8_030_261_248,
    "qwen2.5-1.5b-instruct": 1_543_714_304,
    "qwen2.5-14b-instruct": 14_770_033_664,
    "qwen2.5-32b-instruct": 32_763_876_352,
    "qwen2.5-72b-instruct": 72_706_203_648,
    "qwen2.5-7b-instruct": 7_615_616_512,
    "qwen3-14b": 14_768_307_200,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
}


def test_every_shipped_shape_has_the_parameters_of_its_published_weights() -> None:
    counts = {name: count_model(shipped_shape(name)) for name in shipped_names()}
    assert counts == PUBLISHED


def test_a_mixture_multiplies_a_token_with_its_own_experts_only() -> None:
    assert 3.0e9 < count_active(shipped_shape("qwen3-30b-a3b")) < 3.4e9


def test_experts_are_found_under_both_of_their_names(tmp_path: Path) -> None:
    config = json.loads((SHAPES_DIR / "qwen3-30b-a3b.json").read_text())
    config["num_local_experts"] = config.pop("num_experts")
    assert read_shape(write(tmp_path, config), "x").num_experts == 128


def test_a_small_model_counted_by_hand(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen2", "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 12,
        "tie_word_embeddings": True,
    }  # fmt: skip
    shape = read_shape(write(tmp_path, config), "small")
    # Fused qkv 8 x (8 + 4 + 4) and its bias, projection 8 x 8, MLP 3 x 8 x 10, two norms.
    layer = 8 * 16 + 16 + 8 * 8 + 3 * 8 * 10 + 2 * 8
    assert count_model(shape) == 12 * 8 + 2 * layer + 8
    # TP2 cuts everything but norms; each stage of PP2 has its own copy of the tied embedding.
    layout = Layout(num_gpus=4, tensor=2, pipeline=2)
    cut = (layer - 16) // 2 + 16
    assert count_rank(shape, layout, 0).dense == 12 * 8 // 2 + cut
    assert count_rank(shape, layout, 1).dense == cut + 8 + 12 * 8 // 2


def test_adapters_counted_by_hand(tmp_path: Path) -> None:
    shape = shipped_shape("qwen2.5-7b-instruct")
    # in + out of qkv, projection, gate and up, down; rank 4 for each.
    widths = (3584 + 4608) + (3584 + 3584) + (3584 + 2 * 18944) + (18944 + 3584)
    assert count_adapters(shape, Layout(num_gpus=1), 4) == 28 * 4 * widths


@pytest.mark.parametrize(
    ("name", "sizes", "problem"),
    [
        ("qwen2.5-7b-instruct", {"tensor": 8}, "TP8 does not divide num_attention_heads (28)"),
        ("qwen2.5-7b-instruct", {"pipeline": 8}, "PP8 x VPP1 does not divide num_hidden_layers"),
        ("qwen2.5-7b-instruct", {"virtual_pipeline": 2}, "VPP2 needs PP of 2 or more"),
        ("qwen2.5-7b-instruct", {"expert": 2}, "EP2 needs a mixture of experts"),
        ("qwen2.5-7b-instruct", {"num_gpus": 6, "tensor": 4}, "(4) does not divide 6 GPUs"),
        ("qwen3-30b-a3b", {"expert": 3}, "EP3 does not divide num_experts (128)"),
        ("qwen3-30b-a3b", {"expert_tensor": 5}, "ETP5 does not divide moe_intermediate_size"),
        ("qwen3-30b-a3b", {"expert": 16}, "ETP x EP x PP (16) does not divide 8 GPUs"),
        ("qwen3-30b-a3b", {"tensor": 3}, "TP3 and num_key_value_heads (4) do not divide"),
    ],
)
def test_a_cut_that_megatron_refuses_is_named(name: str, sizes: dict[str, int], problem: str):
    layout = Layout(**{"num_gpus": 8, **sizes})
    assert problem in " | ".join(layout_problems(shipped_shape(name), layout))


def test_an_unknown_shape_lists_what_exists_and_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"plan.model_shape must be one of llama.*qwen2.5-7b-inst"
    ):
        shipped_shape("qwen2.5-7b-instrukt")


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"must be a readable config.json \(.*Download it again"):
        read_shape(path, "x")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "gemma"},
            r"must be of a family that can be planned \(qwen2, .*got 'gemma'",
        ),
        ({"model_type": "llama", "num_attention_heads": 4}, "must name its num_hidden_layers"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "must have experts in every layer"),
    ],
)
def test_a_file_that_cannot_be_planned_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_shape(write(tmp_path, config), "x")


def write(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path
