"""A transformer of plain PyTorch layers with the parameter names of Transformer Engine.

Megatron-Bridge loads and exports Hugging Face weights by parameter name, and for Qwen and Llama it
knows only the names that Transformer Engine's layers give. The layers below carry those names, so
weights, exports and checkpoints are the same as on a GPU. Nothing here needs a CPU.
"""

from __future__ import annotations

from functools import partial

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
)

from megatron_agent.backend.cpu.attention import SDPACoreAttention
from megatron_agent.backend.cpu.norm import RMSNorm, TELayerNormColumnParallelLinear
from megatron_agent.errors import ConfigError


def torch_layer_spec(
    config: TransformerConfig, vp_stage: int | None = None
) -> TransformerBlockSubmodules:
    """Return the layers of this pipeline stage and the norm after the last layer.

    Args:
        config: the model's configuration, also a Megatron-Bridge provider.
        vp_stage: the virtual pipeline stage, if there are several.

    Raises:
        ConfigError: the model is neither dense with RMS norms, as Qwen2, Qwen3 and Llama are, nor a
            mixture of experts in every layer, as Qwen3-MoE is.

    Example:
        ``provider.transformer_layer_spec = torch_layer_spec``
    """
    _check(config)
    num_layers = get_num_layers_to_build(config, vp_stage)
    return TransformerBlockSubmodules(layer_specs=[_layer(config)] * num_layers, layer_norm=RMSNorm)


def _layer(config: TransformerConfig) -> ModuleSpec:
    # Both norms of a layer live inside the linear layer that reads them, hence no norm of its own.
    qk_norm = RMSNorm if config.qk_layernorm else IdentityOp
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=TELayerNormColumnParallelLinear,
            core_attention=SDPACoreAttention,
            linear_proj=RowParallelLinear,
            q_layernorm=qk_norm,
            k_layernorm=qk_norm,
        ),
    )
    is_moe = config.num_moe_experts is not None
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=IdentityOp,
            self_attention=attention,
            self_attn_bda=get_bias_dropout_add,
            # The router and the experts all read it, so it cannot live inside one linear layer.
            pre_mlp_layernorm=RMSNorm if is_moe else IdentityOp,
            mlp=_experts() if is_moe else _dense_mlp(),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def _dense_mlp() -> partial[MLP]:
    return partial(
        MLP.as_mlp_submodule,
        submodules=MLPSubmodules(
            linear_fc1=TELayerNormColumnParallelLinear, linear_fc2=RowParallelLinear
        ),
    )


def _experts() -> partial[MoELayer]:
    # One expert after the other: a grouped product of all at once needs Transformer Engine.
    experts = partial(
        SequentialMLP,
        submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
    )
    return partial(MoELayer, submodules=MoESubmodules(experts=experts))


def _check(config: TransformerConfig) -> None:
    wanted: dict[str, object] = {
        "normalization": "RMSNorm",
        "layernorm_zero_centered_gamma": False,
        "multi_latent_attention": False,
        "qk_l2_norm": False,
    }
    if config.num_moe_experts is not None:
        wanted |= {"moe_layer_freq": 1, "moe_shared_expert_intermediate_size": None}
    for key, needed in wanted.items():
        value = getattr(config, key)
        if value != needed:
            raise ConfigError(
                f"transformer_config.{key}",
                f"must be {needed!r} for the layers without Transformer Engine",
                value,
                "Use a dense Qwen2, Qwen3 or Llama model or Qwen3-MoE, or train on a GPU.",
            )
