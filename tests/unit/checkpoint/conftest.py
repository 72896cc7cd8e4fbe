"""A model of two layers with two experts each, small enough to check by eye.

Its rules are written out here, so that no test of this tier needs Megatron.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from megatron_agent.checkpoint import megatron_model, megatron_rules
from megatron_agent.checkpoint.rules import ModelRules, ParamRule, Piece, RankContents
from megatron_agent.checkpoint.safetensors_folder import SafetensorsFolder
from megatron_agent.checkpoint.targets import ITERATION, MegatronTarget
from megatron_agent.checkpoint.torch_dist_folder import TorchDistFolder
from megatron_agent.checkpoint.weights import HFWeights, MegatronWeights

VOCAB, HIDDEN, LAYERS, EXPERTS = 6, 4, 2, 2
EMBEDDING = "embedding.word_embeddings.weight"
GATE_UP = "decoder.layers.mlp.linear_fc1.weight"
EXPERT = "decoder.layers.mlp.experts.experts.linear_fc2.weight"
NORM = "decoder.final_layernorm.weight"


def _plain(name: str, key: str, lead: tuple[int, ...], hf: str, *shape: int) -> ParamRule:
    return ParamRule(
        name=name,
        key=key,
        lead=lead,
        shape=shape,
        is_vocab=key == EMBEDDING,
        hf_shapes={hf: shape},
        to_hf=lambda tensor: {hf: tensor},
        to_megatron=lambda tensors: tensors[hf],
    )


def _gate_up(layer: int) -> ParamRule:
    gate, up = (f"model.layers.{layer}.mlp.{part}_proj.weight" for part in ("gate", "up"))

    def to_hf(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        return dict(zip((gate, up), tensor.chunk(2), strict=True))

    def to_megatron(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([tensors[gate], tensors[up]])

    return ParamRule(
        name=f"decoder.layers.{layer}.mlp.linear_fc1.weight",
        key=GATE_UP,
        lead=(layer,),
        shape=(8, HIDDEN),
        is_vocab=False,
        hf_shapes={gate: (4, HIDDEN), up: (4, HIDDEN)},
        to_hf=to_hf,
        to_megatron=to_megatron,
    )


def _expert(layer: int, expert: int) -> ParamRule:
    hf = f"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"
    name = f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.linear_fc2.weight"
    return _plain(name, EXPERT, (layer, expert), hf, HIDDEN, 4)


@pytest.fixture
def rules() -> ModelRules:
    layers = [
        rule
        for layer in range(LAYERS)
        for rule in (_gate_up(layer), *(_expert(layer, expert) for expert in range(EXPERTS)))
    ]
    return ModelRules(
        params=(
            _plain(EMBEDDING, EMBEDDING, (), "model.embed_tokens.weight", VOCAB, HIDDEN),
            *layers,
            _plain(NORM, NORM, (), "model.norm.weight", HIDDEN),
        ),
        tied_output="lm_head.weight",
        num_layers=LAYERS,
        num_experts=EXPERTS,
        vocab_size=VOCAB,
    )


@pytest.fixture
def ranks() -> list[RankContents]:
    """TP2, with the vocabulary padded from 6 to 8; experts and norm on the first rank."""
    contents = []
    for rank in range(2):
        pieces = [Piece(EMBEDDING, (8, HIDDEN), (), (4 * rank, 0), (4, HIDDEN))]
        for layer in range(LAYERS):
            shape = (LAYERS, 8, HIDDEN)
            pieces += [
                Piece(GATE_UP, shape, (layer,), (half + 2 * rank, 0), (2, HIDDEN))
                for half in (0, 4)
            ]
        if rank == 0:
            pieces += [
                Piece(EXPERT, (LAYERS, EXPERTS, HIDDEN, 4), (layer, expert), (0, 0), (HIDDEN, 4))
                for layer in range(LAYERS)
                for expert in range(EXPERTS)
            ]
            pieces.append(Piece(NORM, (HIDDEN,), (), (0,), (HIDDEN,)))
        contents.append(RankContents(0, tuple(pieces), (f"state/shard_{rank}_2",)))
    return contents


@pytest.fixture
def toy_model(
    monkeypatch: pytest.MonkeyPatch, rules: ModelRules, ranks: list[RankContents]
) -> None:
    """Whatever is asked of Megatron is answered from here, so that whole conversions run."""
    config = SimpleNamespace(architectures=["ToyForCausalLM"])
    monkeypatch.setattr(megatron_model, "prepare", lambda: None)
    monkeypatch.setattr(megatron_model, "read_config", lambda folder: config)
    monkeypatch.setattr(megatron_rules, "rank_contents", lambda config, layout: ranks)
    monkeypatch.setattr(megatron_rules, "model_rules", lambda config: nullcontext(rules))


@pytest.fixture
def tensors(rules: ModelRules) -> dict[str, torch.Tensor]:
    """The model's Hugging Face tensors; every number differs from all others."""
    start, tensors = 1.0, {}
    for name, shape in rules.hf_shapes().items():
        count = torch.Size(shape).numel()
        tensors[name] = torch.arange(start, start + count).reshape(shape).to(torch.bfloat16)
        start += count
    return tensors


@pytest.fixture
def hf_folder(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text('{"dtype": "bfloat16"}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def write_megatron(rules: ModelRules, ranks: list[RankContents]) -> Callable[..., Path]:
    """Write a Hugging Face folder as a TP2 checkpoint; returns its iteration."""

    def write(hf_folder: Path, root: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
        root.mkdir()
        dtypes = {rule.name: dtype for rule in rules.params}
        target = MegatronTarget(rules, ranks, dtypes, 10**9, {"iteration": 0})
        with SafetensorsFolder(hf_folder) as folder:
            weights = HFWeights(folder)
            results = [target.write(b, root, weights, lambda _: None) for b in target.batches]
        target.finish(root, results)
        return root / ITERATION

    return write


@pytest.fixture
def megatron_folder(tmp_path: Path, hf_folder: Path, write_megatron: Callable[..., Path]) -> Path:
    return write_megatron(hf_folder, tmp_path / "megatron")


@pytest.fixture
def opened(hf_folder: Path, megatron_folder: Path) -> Any:
    """Both formats of the model, open for reading."""
    with SafetensorsFolder(hf_folder) as hf, TorchDistFolder(megatron_folder) as megatron:
        yield HFWeights(hf), MegatronWeights(megatron)
