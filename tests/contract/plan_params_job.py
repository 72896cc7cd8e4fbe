"""Build models with Megatron on the meta device and print the parameters of every rank.

A process of its own, because process groups are global. They are fakes: one process plays one rank
of any world, nothing is sent and no memory is taken.

Usage: python plan_params_job.py < cases.json > counts.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch.testing._internal.distributed.fake_pg import FakeStore

from megatron_agent.backend import cpu
from megatron_agent.backend.cpu.transformer_settings import WITHOUT_CUDA

SETTINGS = {
    **WITHOUT_CUDA,
    "perform_initialization": False,
    "init_model_with_meta_device": True,
}


def main() -> None:
    # One stream for the result: libraries write to the other.
    result, sys.stdout = sys.stdout, sys.stderr
    # Megatron-Bridge imports Transformer Engine, which this gives stand-ins for.
    assert cpu.register()
    counts = [count_stages(case) for case in json.load(sys.stdin)]
    json.dump(counts, result)
    # Nobody else will: at the end the interpreter flushes what stands in sys.stdout by then.
    result.flush()


def count_stages(case: dict[str, Any]) -> list[dict[str, int]]:
    """Parameters of the first rank of every pipeline stage."""
    world_size, num_stages = case["num_gpus"], case["pipeline"]
    ranks_per_stage = world_size // num_stages
    return [count_rank(case, stage * ranks_per_stage, world_size) for stage in range(num_stages)]


def count_rank(case: dict[str, Any], rank: int, world_size: int) -> dict[str, int]:
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=case["tensor"],
            pipeline_model_parallel_size=case["pipeline"],
            context_parallel_size=case["context"],
            expert_model_parallel_size=case["expert"],
            expert_tensor_parallel_size=case["expert_tensor"],
            create_gloo_process_groups=False,
        )
        model = build(case)
        expert = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
        total = sum(p.numel() for p in model.parameters())
        devices = {p.device.type for p in model.parameters()}
        assert devices == {"meta"}, devices
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return {"dense": total - expert, "expert": expert, "trained": trained}
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def build(case: dict[str, Any]) -> torch.nn.Module:
    from megatron.bridge import AutoBridge
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.process_groups_config import ProcessGroupCollection
    from transformers import AutoConfig

    from megatron_agent.backend.cpu.cuda_standins import cuda_means_cpu

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(case["config"]))
        hf_config = AutoConfig.from_pretrained(folder)
    provider = AutoBridge.from_hf_config(hf_config).to_megatron_provider(load_weights=False)
    provider.transformer_layer_spec = partial(
        get_gpt_decoder_block_spec, use_transformer_engine=False, normalization="RMSNorm"
    )
    overrides = {
        **SETTINGS,
        "tensor_model_parallel_size": case["tensor"],
        "pipeline_model_parallel_size": case["pipeline"],
        "context_parallel_size": case["context"],
        "expert_model_parallel_size": case["expert"],
        "expert_tensor_parallel_size": case["expert_tensor"],
        "sequence_parallel": False,  # counts do not depend on it, the plain norm refuses it
        "pipeline_dtype": torch.bfloat16,
    }
    for name, value in overrides.items():
        setattr(provider, name, value)
    with cuda_means_cpu():
        provider.finalize()
        provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
        model = provider.provide()
        if case["lora_rank"]:
            from megatron.bridge.peft import utils
            from megatron.bridge.peft.lora import LoRA

            utils.HAVE_TE = False  # what stands in for its layers here are no classes
            with torch.device("meta"):
                model = LoRA(dim=case["lora_rank"])(model)
            model = model[0] if isinstance(model, list) else model
    return model


if __name__ == "__main__":
    main()
