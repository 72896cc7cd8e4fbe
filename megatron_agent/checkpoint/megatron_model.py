"""Megatron's model of a configuration, on the CPU, as any rank of any layout has it.

It is built with memory or without (torch's meta device), and without other processes: a process
group that only pretends answers for the rank.

Call :func:`prepare` before anything else, in a process without a process group and without a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from megatron_agent.backend.cpu import cuda_standins
from megatron_agent.backend.cpu.transformer_settings import WITHOUT_CUDA
from megatron_agent.checkpoint.layout import Layout
from megatron_agent.errors import CheckpointError, ConfigError

# The routers of experts as verl sets them.
PROVIDER_SETTINGS: dict[str, Any] = {
    **WITHOUT_CUDA,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_load_balancing_type": "none",
}
# As verl's checkpoint manager asks for it. Megatron adds to what it is given: pass a copy.
SHARDING = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}


def prepare() -> None:
    """Make Megatron importable without a GPU. Safe to call again.

    Raises:
        HookError: a GPU is visible, or Megatron was imported already.
    """
    cuda_standins.install()


def read_config(folder: Path) -> Any:
    """Return the model's configuration.

    Raises:
        CheckpointError: there is none, or it is of an architecture that does not convert here.
    """
    from megatron.bridge import AutoBridge
    from transformers import AutoConfig

    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            str(folder), "must hold the model's config.json", "none", "Name its folder with --hf."
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        AutoBridge.from_hf_config(config)
    except Exception as error:  # transformers and the bridge raise what they like
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            str(path),
            "must describe a causal language model that transformers and Megatron-Bridge know",
            reason,
            "Use a Qwen2, Qwen3, Qwen3-MoE or Llama model.",
        ) from None
    return config


@contextlib.contextmanager
def pretend_rank(layout: Layout, rank: int) -> Iterator[None]:
    """Be one rank of a layout, in a process group that answers without anybody else.

    Raises:
        CheckpointError: this process is part of a real group.
    """
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise CheckpointError(
            "convert",
            "must run in a process of its own",
            "a process group in use",
            "Start tools/convert_ckpt.py instead.",
        )
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.num_ranks)
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            expert_model_parallel_size=layout.ep,
            create_gloo_process_groups=False,
        )
        with cuda_standins.cuda_means_cpu():
            model_parallel_cuda_manual_seed(1)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def build_model(
    config: Any, layout: Layout, *, dtype: torch.dtype = torch.bfloat16, device: str = "meta"
) -> Any:
    """Build the part of the model that the present rank holds.

    Raises:
        CheckpointError: the layout does not divide the model, or its layers are of another kind.
    """
    from megatron.bridge import AutoBridge
    from megatron.core import parallel_state

    from megatron_agent.backend.cpu.layer_spec import torch_layer_spec

    try:
        provider = AutoBridge.from_hf_config(config).to_megatron_provider(load_weights=False)
        provider.transformer_layer_spec = torch_layer_spec
        provider.apply_overrides_and_finalize(
            dtype=dtype,
            overrides={
                **PROVIDER_SETTINGS,
                "tensor_model_parallel_size": layout.tp,
                "pipeline_model_parallel_size": layout.pp,
                "expert_model_parallel_size": layout.ep,
                "sequence_parallel": layout.ep > 1 and layout.tp > 1,  # Megatron insists
                "pipeline_dtype": dtype,
                "should_pad_vocab": provider.vocab_size % layout.tp != 0,
            },
        )
        with torch.device(device), cuda_standins.cuda_means_cpu():
            return provider.provide(
                pre_process=parallel_state.is_pipeline_first_stage(),
                post_process=parallel_state.is_pipeline_last_stage(),
            )
    except ConfigError as error:
        raise CheckpointError(error.key, error.rule, error.value, error.remedy) from None
    except (ValueError, AssertionError, RuntimeError, ZeroDivisionError) as error:
        raise CheckpointError(
            "--layout",
            f"must divide the layers, heads, experts and sizes of {config.model_type}",
            str(layout),
            f"Megatron says: {' '.join(str(error).split())[:200] or type(error).__name__}.",
        ) from None
