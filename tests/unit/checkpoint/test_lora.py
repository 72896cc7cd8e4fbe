"""Merging adapters, against the formula, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_agent.checkpoint.lora import LoraAdapter, MergedWeights
from megatron_agent.checkpoint.rules import ModelRules
from megatron_agent.checkpoint.safetensors_folder import SafetensorsFolder
from megatron_agent.checkpoint.tensors import same_bits
from megatron_agent.checkpoint.weights import HFWeights
from megatron_agent.errors import CheckpointError

pytestmark = pytest.mark.unit

MODULE = "model.layers.0.mlp.gate_proj"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Rank 2 with alpha 6 on one module."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    halves = {"A": (2, 4), "B": (4, 2)}
    tensors = {
        f"base_model.model.{MODULE}.lora_{half}.weight": torch.randn(shape, generator=generator)
        for half, shape in halves.items()
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    configure(folder)
    return folder


def configure(folder: Path, **more: Any) -> None:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, **more}
    (folder / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("more", "scale"),
    [
        ({}, 3.0),
        ({"use_rslora": True}, 6 / 2**0.5),
        ({"alpha_pattern": {"gate_proj": 2}}, 1.0),
        ({"rank_pattern": {"mlp.gate_proj": 1}}, 6.0),
        ({"rank_pattern": {"up_proj": 1}}, 3.0),
        ({"bias": "none", "use_dora": False, "modules_to_save": []}, 3.0),
    ],
)
def test_a_merged_weight_is_the_base_and_the_scaled_product(
    adapter: Path, hf_folder: Path, rules: ModelRules, more: dict[str, Any], scale: float
) -> None:
    configure(adapter, **more)
    halves = load_file(adapter / "adapter_model.safetensors")
    product = (
        halves[f"base_model.model.{MODULE}.lora_B.weight"]
        @ halves[f"base_model.model.{MODULE}.lora_A.weight"]
    )
    with SafetensorsFolder(hf_folder) as folder:
        base = HFWeights(folder)
        lora = LoraAdapter(adapter)
        lora.check_fits(rules)
        rule = rules.params[1]
        merged = MergedWeights(base, lora, torch.float32).hf(rule)
        expected = base.hf(rule)[f"{MODULE}.weight"].float() + scale * product
        torch.testing.assert_close(merged[f"{MODULE}.weight"], expected)
        same = MergedWeights(base, lora, None)
        assert same.dtype(rule) == torch.bfloat16
        assert same_bits(same.hf(rule)[f"{MODULE}.weight"], expected.bfloat16())
        untouched = "model.layers.0.mlp.up_proj.weight"
        assert same_bits(same.hf(rule)[untouched], base.hf(rule)[untouched])
        assert same_bits(same.megatron(rule), rule.to_megatron(same.hf(rule)))
        assert same.account(rules) == []
        lora.close()


@pytest.mark.parametrize(
    "more",
    [
        {"peft_type": "IA3"},
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"fan_in_fan_out": True},
    ],
)
def test_another_kind_of_adapter_is_refused(adapter: Path, more: dict[str, Any]) -> None:
    configure(adapter, **more)
    with pytest.raises(CheckpointError, match=f"{next(iter(more))} must be .* Merge this adapter"):
        LoraAdapter(adapter)


@pytest.mark.parametrize("text", ["", "[]", '{"r": 2}'])
def test_a_folder_without_an_adapters_configuration_is_refused(adapter: Path, text: str) -> None:
    (adapter / "adapter_config.json").write_text(text)
    with pytest.raises(CheckpointError, match="must be JSON with r and lora_alpha"):
        LoraAdapter(adapter)


def test_an_adapter_in_a_pickle_is_refused(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="never loaded here"):
        LoraAdapter(adapter)


@pytest.mark.parametrize("name", ["other", f"base_model.model.{MODULE}2.lora_A.weight"])
def test_tensors_that_are_no_pairs_are_refused(adapter: Path, name: str) -> None:
    path = adapter / "adapter_model.safetensors"
    save_file({**load_file(path), name: torch.zeros(2, 4)}, path)
    with pytest.raises(CheckpointError, match="must hold pairs of lora_A and lora_B"):
        LoraAdapter(adapter)


@pytest.mark.parametrize(
    ("module", "columns", "found"), [("model.layers.9.x", 4, "missing"), (MODULE, 5, r"\(4, 4\)")]
)
def test_an_adapter_of_another_model_is_refused(
    adapter: Path, rules: ModelRules, module: str, columns: int, found: str
) -> None:
    tensors = {
        f"base_model.model.{module}.lora_A.weight": torch.zeros(2, columns),
        f"base_model.model.{module}.lora_B.weight": torch.zeros(4, 2),
    }
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=f"{module} is {found}"):
        LoraAdapter(adapter).check_fits(rules)
