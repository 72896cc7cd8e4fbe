"""The plain PyTorch layers, one process, no process group."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.packed_seq_params import PackedSeqParams

from megatron_agent.backend.cpu.adapters import check_adapters, feed_adapters
from megatron_agent.backend.cpu.attention import SDPACoreAttention, _slots
from megatron_agent.backend.cpu.layer_spec import torch_layer_spec
from megatron_agent.backend.cpu.norm import RMSNorm, TELayerNormColumnParallelLinear
from megatron_agent.errors import ConfigError

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 8


def _config(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "attention_dropout": 0.0,
        "context_parallel_size": 1,
        "window_size": None,
        "softmax_type": "vanilla",
        "normalization": "RMSNorm",
        "num_moe_experts": None,
        "layernorm_zero_centered_gamma": False,
        "multi_latent_attention": False,
        "qk_l2_norm": False,
        "use_cpu_initialization": True,
        "params_dtype": torch.float32,
        "sequence_parallel": False,
    }
    return SimpleNamespace(**{**values, **changes})


def _packed(bounds: list[int]) -> PackedSeqParams:
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)


def _by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention of one sequence [L, heads, head_dim], written out."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)


def _qkv(num_tokens: int, *batch: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(num_tokens, *batch, heads, HEAD_DIM, generator=generator)
        for heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)
    ]


def test_padded_attention_is_causal_per_column() -> None:
    query, key, value = _qkv(6, 3)
    out = SDPACoreAttention(_config())(query, key, value, None)
    assert out.shape == (6, 3, NUM_HEADS * HEAD_DIM)
    for column in range(3):
        expected = _by_hand(query[:, column], key[:, column], value[:, column])
        torch.testing.assert_close(out[:, column], expected)


@pytest.mark.parametrize("bounds", [[0, 9], [0, 2, 5, 9], [0, 4, 4, 9], [0, 1, 2, 9]])
def test_packed_attention_keeps_sequences_apart(bounds: list[int]) -> None:
    query, key, value = _qkv(9)
    out = SDPACoreAttention(_config())(query, key, value, None, packed_seq_params=_packed(bounds))
    assert out.shape == (9, NUM_HEADS * HEAD_DIM)
    for start, end in itertools.pairwise(bounds):
        expected = _by_hand(query[start:end], key[start:end], value[start:end])
        torch.testing.assert_close(out[start:end], expected)


def test_tokens_after_the_last_packed_sequence_change_nothing() -> None:
    query, key, value = _qkv(9)
    attention = SDPACoreAttention(_config())
    out = attention(query, key, value, None, packed_seq_params=_packed([0, 3, 6]))
    alone = attention(query[:6], key[:6], value[:6], None, packed_seq_params=_packed([0, 3, 6]))
    torch.testing.assert_close(out[:6], alone)
    assert out.isfinite().all()


def test_packed_gradients_equal_those_of_separate_sequences() -> None:
    bounds = [0, 2, 5, 9]
    packed = [x.requires_grad_() for x in _qkv(9)]
    separate = [x.detach().clone().requires_grad_() for x in packed]
    SDPACoreAttention(_config())(
        *packed, None, packed_seq_params=_packed(bounds)
    ).square().sum().backward()
    for start, end in itertools.pairwise(bounds):
        _by_hand(*(x[start:end] for x in separate)).square().sum().backward()
    for ours, theirs in zip(packed, separate, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_slots_are_those_of_the_worked_example() -> None:
    slots, shape = _slots(_packed([0, 2, 5]), 5, torch.device("cpu"))
    assert (slots.tolist(), shape) == ([0, 2, 1, 3, 5], (3, 2))


def test_softmax_scale_is_used() -> None:
    query, key, value = _qkv(5, 1)
    scaled = SDPACoreAttention(_config(), softmax_scale=0.5)(query, key, value, None)
    default = SDPACoreAttention(_config())(query * 0.5 * HEAD_DIM**0.5, key, value, None)
    torch.testing.assert_close(scaled, default)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_dropout", 0.1),
        ("context_parallel_size", 2),
        ("window_size", (128, 0)),
        ("softmax_type", "learnable"),
    ],
)
def test_attention_refuses_what_it_does_not_have(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"transformer_config\.{key} must be .*got "):
        SDPACoreAttention(_config(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalization", "LayerNorm"),
        ("layernorm_zero_centered_gamma", True),
        ("multi_latent_attention", True),
        ("qk_l2_norm", True),
    ],
)
def test_layer_spec_refuses_other_architectures(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"transformer_config\.{key} must be .*dense Qwen2"):
        torch_layer_spec(_config(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [("moe_layer_freq", [0, 1]), ("moe_shared_expert_intermediate_size", 64)],
)
def test_layer_spec_refuses_other_mixtures_of_experts(key: str, value: Any) -> None:
    config = _config(
        num_moe_experts=8,
        **{"moe_layer_freq": 1, "moe_shared_expert_intermediate_size": None, key: value},
    )
    with pytest.raises(ConfigError, match=rf"transformer_config\.{key} must be .*Qwen3-MoE"):
        torch_layer_spec(config)


def test_norm_divides_by_the_root_mean_square() -> None:
    norm = RMSNorm(_config(), 2, eps=0.0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0]))
    out = norm(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(out, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_norm_weight_is_marked_for_sequence_parallelism(sequence_parallel: bool) -> None:
    norm = RMSNorm(_config(sequence_parallel=sequence_parallel), 4)
    assert norm.weight.sequence_parallel is sequence_parallel


def test_adapters_read_what_the_layer_beside_them_reads() -> None:
    layer = object.__new__(TELayerNormColumnParallelLinear)
    torch.nn.Module.__init__(layer)
    layer.return_layernorm_output = False
    wrapper = torch.nn.Module()
    wrapper.to_wrap = layer
    feed_adapters([torch.nn.ModuleList([wrapper, torch.nn.Linear(2, 2)])])
    assert layer.return_layernorm_output


@pytest.mark.parametrize("targets", [["linear_qkv", "linear_fc1"], ["*.layers.0.*.linear_fc2"]])
def test_adapters_on_experts_of_several_ranks_are_refused(targets: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"lora\.target_modules must not name layers of experts"):
        check_adapters({"rank": 8, "target_modules": targets}, expert_parallel=2)
    check_adapters({"rank": 8, "target_modules": targets}, expert_parallel=1)
    check_adapters({"rank": 0, "target_modules": targets}, expert_parallel=2)
    check_adapters({"rank": 8, "target_modules": ["linear_qkv"]}, expert_parallel=2)
