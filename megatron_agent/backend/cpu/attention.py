"""Causal core attention in plain PyTorch for padded and for packed batches.

Megatron calls it with queries, keys and values after rotary embedding:

- padded ("sbhd"): [S, B, heads, head_dim]. Sequences start at position 0 and are padded on the
  right (verl always does), so causality alone keeps padding out of every real token; what padded
  positions compute is finite and nobody reads it.
- packed ("thd"): [L, heads, head_dim], the sequences of ``packed_seq_params`` one after another.

There may be fewer key/value heads than query heads (grouped-query attention).
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from torch.nn.functional import scaled_dot_product_attention

from megatron_agent.errors import ConfigError


class SDPACoreAttention(torch.nn.Module):
    """Causal attention through PyTorch's ``scaled_dot_product_attention``.

    Args:
        config: the transformer configuration.
        softmax_scale: factor on the scores; None means ``1 / sqrt(head_dim)``.

    Raises:
        ConfigError: the model needs what this attention does not have.
    """

    def __init__(
        self, config: TransformerConfig, *, softmax_scale: float | None = None, **_: Any
    ) -> None:
        super().__init__()
        for key, wanted in (
            ("attention_dropout", 0.0),
            ("context_parallel_size", 1),
            ("window_size", None),
            ("softmax_type", "vanilla"),
        ):
            value = getattr(config, key, wanted)
            if value != wanted:
                raise ConfigError(
                    f"transformer_config.{key}",
                    f"must be {wanted!r} for attention without Transformer Engine",
                    value,
                    "Use another model or parallel layout, or install Transformer Engine on a GPU.",
                )
        self.softmax_scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        /,
        *,
        packed_seq_params: PackedSeqParams | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Attend each position to itself and to what stands before it in its sequence.

        Args:
            query: [S, B, heads, head_dim], or [L, heads, head_dim] when packed.
            key: as ``query``, with the number of key/value heads.
            value: as ``key``.
            attention_mask: not read, see the module docstring.
            packed_seq_params: where the packed sequences begin and end; None when padded.

        Returns:
            [S, B, heads * head_dim], or [L, heads * head_dim] when packed.
        """
        if packed_seq_params is None:
            return self._attend(query, key, value).flatten(2)
        slots_L, shape = _slots(packed_seq_params, query.shape[0], query.device)
        grids = (_spread(packed, slots_L, shape) for packed in (query, key, value))
        return self._attend(*grids).flatten(0, 1)[slots_L].flatten(1)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[S, B, heads, head_dim] in, the same out."""
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            scale=self.softmax_scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out.permute(2, 0, 1, 3)


def _slots(
    packed_seq_params: PackedSeqParams, num_tokens: int, device: torch.device
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Give each packed token its place in a right-padded grid of one column per sequence.

    One padded call for all sequences is several times faster than one call per sequence when they
    are short, and needs no mask that grows with the square of all tokens together.

    Returns:
        The place of each token in the flattened grid, [L], and the shape (S, B) of the grid.

    Example:
        Lengths 2 and 3: the grid is 3 x 2, token t of sequence b sits at ``t * 2 + b``, and the
        five tokens have the places 0, 2, 1, 3, 5.
    """
    bounds = packed_seq_params.cu_seqlens_q_padded
    if bounds is None:
        bounds = packed_seq_params.cu_seqlens_q
    bounds = bounds.to(device=device, dtype=torch.long)
    if int(bounds[-1]) < num_tokens:
        # Tokens after the last sequence are padding. They form one more sequence.
        bounds = torch.cat((bounds, bounds.new_tensor([num_tokens])))
    lengths = torch.diff(bounds)
    positions_L = torch.arange(num_tokens, device=device)
    sequence_ids_L = torch.bucketize(positions_L, bounds[1:], right=True)
    offsets_L = positions_L - bounds[sequence_ids_L]
    longest, num_sequences = int(lengths.max()), lengths.shape[0]
    return offsets_L * num_sequences + sequence_ids_L, (longest, num_sequences)


def _spread(packed: torch.Tensor, slots_L: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Lay packed tokens [L, heads, head_dim] out in a grid [S, B, heads, head_dim] of zeros."""
    grid = packed.new_zeros((shape[0] * shape[1], *packed.shape[1:]))
    return grid.index_put((slots_L,), packed).unflatten(0, shape)
