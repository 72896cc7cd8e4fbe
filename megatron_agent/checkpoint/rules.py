"""The records of a plan: how one parameter looks in both formats, and what ranks hold of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class ParamRule:
    """One Megatron parameter of an unsplit model and the Hugging Face tensors it is made of.

    Attributes:
        name: Megatron's name of it, ``decoder.layers.3.mlp.linear_fc1.weight``.
        key: the global tensor that holds it in a checkpoint. Layers, and experts of a layer, lie
            one after the other in the first axes of one global tensor.
        lead: where it lies in those first axes: ``(3,)``.
        shape: its shape, without vocabulary padding.
        is_vocab: whether its rows are the vocabulary, to which padding may be added.
        hf_shapes: names and shapes of the Hugging Face tensors.
        to_hf: from Megatron's tensor to the Hugging Face tensors by name.
        to_megatron: back.
    """

    name: str
    key: str
    lead: tuple[int, ...]
    shape: tuple[int, ...]
    is_vocab: bool
    hf_shapes: Mapping[str, tuple[int, ...]]
    to_hf: Callable[[torch.Tensor], dict[str, torch.Tensor]]
    to_megatron: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class Piece:
    """What one rank holds of one parameter, and is the first to hold.

    Attributes:
        key: the global tensor.
        global_shape: its shape in this layout, with vocabulary padding.
        lead: the parameter's place in the first axes.
        offset: first row, column, ... of the parameter that the rank holds.
        sizes: how many of each.
    """

    key: str
    global_shape: tuple[int, ...]
    lead: tuple[int, ...]
    offset: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class RankContents:
    """What one rank writes: pieces of tensors, and keys of objects that are no tensors."""

    stage: int
    pieces: tuple[Piece, ...]
    object_keys: tuple[str, ...]


@dataclass(frozen=True)
class ModelRules:
    """All parameters of a model.

    Attributes:
        params: in the order of the model: embedding, layers, norm, output layer.
        tied_output: the Hugging Face name of the output layer where it is the embedding, else None.
        num_layers: layers of the decoder.
        num_experts: experts of a layer; 0 for a dense model.
        vocab_size: rows of the embedding.
    """

    params: tuple[ParamRule, ...]
    tied_output: str | None
    num_layers: int
    num_experts: int
    vocab_size: int

    def by_place(self) -> dict[tuple[str, tuple[int, ...]], ParamRule]:
        return {(rule.key, rule.lead): rule for rule in self.params}

    def hf_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for rule in self.params for name, shape in rule.hf_shapes.items()}
