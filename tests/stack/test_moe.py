"""A mixture of experts through the whole loop: trained with its experts spread over two ranks."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

MakeRun = Callable[..., "TrainingRun"]  # noqa: F821 - see conftest.py

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")


@pytest.fixture(scope="module")
def moe_policy(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny policy's tokenizer with a random Qwen3-MoE of four experts, two of them a token."""
    import torch
    from transformers import AutoConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

    dense = AutoConfig.from_pretrained(tiny_policy)
    config = Qwen3MoeConfig(
        vocab_size=dense.vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=dense.max_position_embeddings,
        bos_token_id=dense.bos_token_id,
        eos_token_id=dense.eos_token_id,
        pad_token_id=dense.pad_token_id,
        tie_word_embeddings=False,
        dtype=torch.float32,
    )
    folder = tmp_path_factory.mktemp("policy") / "moe"
    shutil.copytree(tiny_policy, folder, ignore=shutil.ignore_patterns(*WEIGHTS))
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


def test_experts_spread_over_two_ranks_are_trained_and_reach_the_servers(
    training_run: MakeRun, moe_policy: Path
) -> None:
    run = training_run(
        "moe",
        f"actor_rollout_ref.model.path={moe_policy}",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
        "cluster.data_parallel_size=2",
        "actor_rollout_ref.actor.megatron.expert_model_parallel_size=2",
        "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1",
        # Large steps: weights that did not arrive would show.
        "actor_rollout_ref.actor.optim.lr=3.0e-3",
        "trainer.total_training_steps=3",
    )
    assert run.finish() == 0, run.output()[-3000:]
    steps = run.metrics()
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["training/rollout_probs_diff_max"] < 1e-4 for line in steps)
    assert all(math.isfinite(line["actor/grad_norm"]) for line in steps)
    assert any(line["actor/grad_norm"] > 0 for line in steps)
