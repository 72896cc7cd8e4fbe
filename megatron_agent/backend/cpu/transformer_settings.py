"""Megatron's own switches for its CUDA operators, all off. Imports nothing."""

from __future__ import annotations

from typing import Any

WITHOUT_CUDA: dict[str, Any] = {
    "use_cpu_initialization": True,
    "gradient_accumulation_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "masked_softmax_fusion": False,
    "persist_layer_norm": False,
    "cross_entropy_loss_fusion": False,
    "tp_comm_overlap": False,
    # Of mixtures of experts; dense models do not read them.
    "moe_permute_fusion": False,
    "moe_grouped_gemm": False,
}
