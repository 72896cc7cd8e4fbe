"""Root-mean-square norm in plain PyTorch, alone and fused with the linear layer after it.

megatron-core without Transformer Engine falls back to ``torch.nn.RMSNorm``, refuses sequence
parallelism there, and names the norm weights in a way that Megatron-Bridge does not know. These two
layers lift that. Nothing in them is particular to a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer import TransformerConfig


def _norm_weight(size: int, config: TransformerConfig) -> torch.nn.Parameter:
    """Return a norm weight of ones, shape [size], on the device where Megatron builds layers."""
    device = None if config.use_cpu_initialization else torch.cuda.current_device()
    weight = torch.nn.Parameter(torch.ones(size, dtype=config.params_dtype, device=device))
    # Under sequence parallelism each rank normalises its own part of the sequence and so holds a
    # part of the gradient. Megatron sums the gradients of parameters that carry this mark.
    weight.sequence_parallel = config.sequence_parallel
    return weight


class RMSNorm(torch.nn.Module):
    """``x / rms(x) * weight`` over the last dimension, with or without sequence parallelism.

    Args:
        config: supplies the dtype and whether the sequence is split over tensor-parallel ranks.
        hidden_size: length of the last dimension.
        eps: added to the mean square.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _norm_weight(hidden_size, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise ``x`` [..., hidden_size]."""
        return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class TELayerNormColumnParallelLinear(ColumnParallelLinear):
    """An RMS norm and the column-parallel linear layer that reads it, as one module.

    Transformer Engine has such a module and Megatron-Bridge addresses checkpoints by its parameter
    names (``linear_qkv.layer_norm_weight``). It also recognises the module by this class name and
    then knows that the norm weight is whole on each rank while the other parameters are split. With
    the same names a checkpoint written here loads on a GPU with Transformer Engine, and back.
    """

    def __init__(
        self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any
    ) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.eps = config.layernorm_epsilon
        self.layer_norm_weight = _norm_weight(input_size, config)
        # Set where an adapter (LoRA) reads what the linear layer reads, as with Transformer Engine.
        self.return_layernorm_output = False

    def forward(
        self, input_: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, torch.Tensor | None]:
        """Normalise ``input_`` [S, B, input_size], then apply this rank's columns.

        Returns:
            The output [S, B, output_size / TP] and the bias that was left to the caller, or None.
            With ``return_layernorm_output`` the output is a pair: itself and what was normalised.
        """
        weight = self.layer_norm_weight
        normed = torch.nn.functional.rms_norm(input_, weight.shape, weight, self.eps)
        output, bias = super().forward(normed, *args, **kwargs)
        return ((output, normed) if self.return_layernorm_output else output), bias
