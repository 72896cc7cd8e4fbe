"""A whole recipe: made twice it is byte-equal, loads by the usual doors, and can be evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.registry import load_env
from megatron_agent.policy.build import PolicyRecipe, build_policy
from megatron_agent.policy.evaluate import evaluate_policy
from megatron_agent.policy.imitation import response_loss
from megatron_agent.policy.model import ModelShape
from megatron_agent.policy.sampling import sample_responses
from megatron_agent.policy.warm_start import WarmStartConfig
from megatron_agent.tasks import generate_tasks

pytestmark = pytest.mark.stack

TINY = ModelShape(hidden=16, layers=1, heads=2, kv_heads=1)
BRIEF = WarmStartConfig(
    max_updates=3, measure_every=3, batch_size=4, num_measure_episodes=4, max_steps=3
)


def _recipe(**changes: Any) -> PolicyRecipe:
    settings: dict[str, Any] = {
        "env": "frozenlake",
        "shape": TINY,
        "warm_start": BRIEF,
        "num_tasks": 40,
        "num_threads": 1,
    }
    return PolicyRecipe(**(settings | changes))


def _load(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_equal_recipes_give_byte_equal_files_and_another_seed_other_weights(
    tmp_path: Path,
) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        build_policy(_recipe(seed=seed), tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json", "policy.json"} <= set(files)
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    first, other = (tmp_path / name / "model.safetensors" for name in "ac")
    assert first.read_bytes() != other.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_loads_by_the_usual_doors(tmp_path: Path, arch: str, tied: bool) -> None:
    shape = ModelShape(arch=arch, tied=tied, hidden=16, layers=1, heads=2, kv_heads=1)
    folder = tmp_path / "policy"
    build_policy(_recipe(shape=shape, warm_start=None), folder)
    model, tokenizer = _load(folder)
    assert model.config.model_type == arch
    assert len(tokenizer) == model.config.vocab_size
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert type(tokenizer).__name__ == "Qwen2Tokenizer"
    text = "F F.\n\nP 12 <think></think><action>up</action>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("<action>up</action>")) == 3


def test_a_policy_is_replaced_whole_and_its_record_says_how_it_was_made(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    build_policy(_recipe(warm_start=None), folder)
    (folder / "stale.txt").write_text("")
    (tmp_path / "policy.partial").mkdir()  # left by a run that was killed
    record = build_policy(_recipe(), folder, overwrite=True)
    assert json.loads((folder / "policy.json").read_text()) == record
    assert record["warm_start"]["num_updates"] == 3
    assert record["warm_start"]["success"]["num_episodes"] == 4
    assert not (folder / "stale.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_evaluation_repeats_with_its_seed_whatever_the_batch_padding(tmp_path: Path) -> None:
    build_policy(_recipe(warm_start=None), tmp_path / "policy")
    model, tokenizer = _load(tmp_path / "policy")
    tasks = generate_tasks("frozenlake", 0, 6)
    spec = load_env("frozenlake")
    first, again = (
        evaluate_policy(model, tokenizer, spec, tasks, max_steps=2, history_length=1, seed=3)
        for _ in range(2)
    )
    assert first == again
    assert first.num_episodes == 6
    assert first.mean_steps == 2  # a random model says nothing legal, and stays where it is
    assert first.valid_action_rate == 0


def test_left_padding_changes_neither_loss_nor_greedy_samples(tmp_path: Path) -> None:
    import torch

    build_policy(_recipe(warm_start=None), tmp_path / "policy")
    model, tokenizer = _load(tmp_path / "policy")
    short = ([5, 6, 7], [8, 9])
    long = ([10, 11, 12, 13, 14, 15], [16, 17, 18])
    alone = [response_loss(model, [example], 0) for example in (short, long)]
    together = response_loss(model, [short, long], 0)
    assert together.item() == pytest.approx((2 * alone[0].item() + 3 * alone[1].item()) / 5)

    def greedy(prompts: list[list[int]]) -> list[list[int]]:
        return sample_responses(
            model,
            prompts,
            eos_id=tokenizer.eos_token_id,
            pad_id=tokenizer.pad_token_id,
            max_new_tokens=5,
            temperature=1e-6,
            generator=torch.Generator().manual_seed(0),
        )

    assert greedy([short[0], long[0]]) == greedy([short[0]]) + greedy([long[0]])
