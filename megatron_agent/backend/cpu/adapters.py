"""LoRA on layers without Transformer Engine: what Megatron-Bridge does not do for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from megatron_agent.backend.cpu.norm import TELayerNormColumnParallelLinear
from megatron_agent.errors import ConfigError

LORA_KEY = "actor_rollout_ref.model.lora"
EXPERT_LAYERS = ("linear_fc1", "linear_fc2")


def feed_adapters(model_chunks: Iterable[torch.nn.Module]) -> None:
    """Let each adapter read what the linear layer beside it reads: the normalised input.

    Megatron-Bridge arranges that for Transformer Engine's layers alone. For others the adapter gets
    the input before the norm, and its merged weights then are those of another model.
    """
    for module in (module for chunk in model_chunks for module in chunk.modules()):
        if isinstance(getattr(module, "to_wrap", None), TELayerNormColumnParallelLinear):
            module.to_wrap.return_layernorm_output = True


def check_adapters(lora: Mapping[str, Any], expert_parallel: int) -> None:
    """Refuse adapters whose merged weights would be wrong.

    Megatron-Bridge 0.6.2 merges a rank's adapters into the experts of all ranks when experts are
    modules of their own, as they are without Transformer Engine's grouped product.

    Args:
        lora: the section ``actor_rollout_ref.model.lora``.
        expert_parallel: ranks over which experts are spread.

    Raises:
        ConfigError: adapters on experts that are spread over ranks.
    """
    targets = lora.get("target_modules") or ()
    on_experts = [name for name in targets if name.rpartition(".")[2] in EXPERT_LAYERS]
    if lora.get("rank", 0) > 0 and expert_parallel > 1 and on_experts:
        raise ConfigError(
            f"{LORA_KEY}.target_modules",
            f"must not name layers of experts ({', '.join(EXPERT_LAYERS)}) under expert "
            f"parallelism ({expert_parallel}) on the CPU platform",
            list(targets),
            "Use [linear_qkv,linear_proj], or expert_model_parallel_size=1.",
        )
