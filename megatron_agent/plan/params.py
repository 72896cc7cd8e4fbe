"""Exact parameter counts, of a whole model and of each rank of a layout.

``tests/contract/test_plan_params.py`` compares them with models that Megatron builds.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatron_agent.plan.layout import Layout
from megatron_agent.plan.shapes import ModelShape


@dataclass(frozen=True, kw_only=True, slots=True)
class RankParams:
    """Parameters on one rank. Those of experts have other data-parallel groups, hence apart."""

    dense: int
    expert: int

    @property
    def total(self) -> int:
        return self.dense + self.expert


def count_model(shape: ModelShape) -> int:
    """Parameters of the whole model, tied weights once.

    Example:
        >>> from megatron_agent.plan.shapes import shipped_shape
        >>> count_model(shipped_shape("qwen2.5-7b-instruct"))
        7615616512
    """
    return count_rank(shape, Layout(num_gpus=1), 0).total


def count_active(shape: ModelShape) -> int:
    """Parameters that a token is multiplied with: the matrices of its experts and the output layer.

    Embedding look-ups and norms cost no matrix product and do not count.
    """
    per_layer = (
        _attention_matrices(shape) + shape.active_mlps * 3 * shape.hidden_size * shape.ffn_size
    )
    router = shape.hidden_size * shape.num_experts
    return shape.num_layers * (per_layer + router) + shape.vocab_size * shape.hidden_size


def count_tensors(shape: ModelShape) -> int:
    """Tensors of a Hugging Face checkpoint: what a weight sync passes one by one.

    Example:
        >>> from megatron_agent.plan.shapes import shipped_shape
        >>> count_tensors(shipped_shape("qwen2.5-7b-instruct"))
        339
    """
    per_layer = 4 + 2  # attention and norms
    per_layer += 3 if shape.qkv_bias else 0
    per_layer += 2 if shape.qk_norm else 0
    per_layer += 3 * shape.num_experts + 1 if shape.num_experts else 3
    return shape.num_layers * per_layer + (2 if shape.tied_embeddings else 3)


def count_rank(shape: ModelShape, layout: Layout, stage: int) -> RankParams:
    """Parameters on each rank of a pipeline stage.

    Args:
        shape: the model.
        layout: one that `layout_problems` finds nothing wrong with.
        stage: 0 holds the embedding, the last one the output layer.
    """
    num_layers = shape.num_layers // layout.pipeline
    dense = num_layers * _dense_per_layer(shape, layout)
    expert = num_layers * _expert_per_layer(shape, layout)
    vocabulary = shape.vocab_size * shape.hidden_size // layout.tensor
    is_first, is_last = stage == 0, stage == layout.pipeline - 1
    if is_first:
        dense += vocabulary
    if is_last:
        dense += shape.hidden_size  # the norm after the last layer
        if not (shape.tied_embeddings and is_first):
            dense += vocabulary
    return RankParams(dense=dense, expert=expert)


def count_adapters(shape: ModelShape, layout: Layout, rank: int) -> int:
    """Parameters of LoRA adapters on each rank of a stage.

    On the four fused linear layers of every dense layer: both factors are cut over the tensor-
    parallel group.
    """
    query, key_value, hidden, ffn = (
        shape.query_size, shape.key_value_size, shape.hidden_size, shape.ffn_size,
    )  # fmt: skip
    widths = (hidden + query + 2 * key_value) + (query + hidden)
    widths += (hidden + 2 * ffn) + (ffn + hidden)
    return shape.num_layers // layout.pipeline * rank * widths // layout.tensor


def _attention_matrices(shape: ModelShape) -> int:
    return shape.hidden_size * (2 * shape.query_size + 2 * shape.key_value_size)


def _dense_per_layer(shape: ModelShape, layout: Layout) -> int:
    sharded = _attention_matrices(shape)
    if shape.qkv_bias:
        sharded += shape.query_size + 2 * shape.key_value_size
    replicated = 2 * shape.hidden_size  # two norms
    if shape.qk_norm:
        replicated += 2 * shape.head_dim
    if shape.num_experts:
        replicated += shape.hidden_size * shape.num_experts  # the router
    else:
        sharded += 3 * shape.hidden_size * shape.ffn_size
    return sharded // layout.tensor + replicated


def _expert_per_layer(shape: ModelShape, layout: Layout) -> int:
    one = 3 * shape.hidden_size * shape.ffn_size // layout.expert_tensor
    return shape.num_experts // layout.expert * one
