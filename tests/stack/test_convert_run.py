"""A run starts from a converted checkpoint, its own checkpoint converts back, and the result plays
the same greedy episodes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2400)]

MakeRun = Callable[..., Any]

ROOT = Path(__file__).resolve().parents[2]
ACTOR = "actor_rollout_ref.actor"
GREEDY = (
    "actor_rollout_ref.rollout.val_kwargs.do_sample=false",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0",
)


def convert(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "convert_ckpt.py", "--no-progress", *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def greedy_episodes(run: Any, global_step: int) -> dict[str, list[str]]:
    """Responses of each evaluation episode, by task."""
    return {
        episode["task_id"]: [turn["response"] for turn in episode["turns"]]
        for episode in run.episodes()
        if episode["split"] == "eval" and episode["global_step"] == global_step
    }


def test_a_trained_checkpoint_converts_and_plays_on(
    training_run: MakeRun, tiny_policy: Path, tmp_path: Path
):
    convert(tiny_policy, tmp_path / "start", "--layout", "TP2", "--shard-size", "200KB")
    trained = training_run(
        "trained",
        *GREEDY,
        f"{ACTOR}.megatron.use_dist_checkpointing=true",
        f"{ACTOR}.megatron.dist_checkpointing_path={tmp_path / 'start' / 'iter_0000000'}",
        f"{ACTOR}.checkpoint.save_contents=[model,hf_model,optimizer,extra]",
        f"{ACTOR}.optim.lr=1e-3",
        "trainer.save_freq=2",
        "trainer.test_freq=2",
    )
    assert trained.finish() == 0, trained.output()[-3000:]
    # Step 1 samples from the weights that the servers read from the Hugging Face folder; Megatron
    # read them from the conversion.
    assert all(line["training/rollout_probs_diff_max"] < 1e-4 for line in trained.metrics())

    step = trained.folder / "checkpoints" / "global_step_2"
    assert (step / "actor/model/dist_ckpt/.metadata").is_file()
    said = convert(step, tmp_path / "policy")
    assert "verdict: pass" in said
    assert "logits on fixed prompts" in said

    made = load_file(tmp_path / "policy" / "model.safetensors")
    exported = load_file(step / "actor/model/huggingface/model.safetensors")
    start = load_file(tiny_policy / "model.safetensors")
    assert made.keys() == exported.keys() == start.keys()
    assert all(torch.equal(tensor, exported[name]) for name, tensor in made.items())
    assert any(not torch.equal(tensor, start[name].float()) for name, tensor in made.items())

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(tiny_policy).chat_template
    _, loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["unexpected_keys"]

    played = training_run(
        "played",
        *GREEDY,
        f"actor_rollout_ref.model.path={tmp_path / 'policy'}",
        "trainer.val_before_train=true",
        "trainer.val_only=true",
    )
    assert played.finish() == 0, played.output()[-3000:]
    expected = greedy_episodes(trained, 2)
    assert len(expected) == 4
    assert greedy_episodes(played, 0) == expected
