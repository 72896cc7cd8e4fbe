"""The tokenizer and the random model (these import transformers, so they take a few seconds)."""

from __future__ import annotations

from typing import Any

import pytest

from envs.base import PromptContext
from envs.registry import load_env
from envs.tags import format_response
from megatron_agent.errors import ConfigError
from megatron_agent.policy.model import ModelShape, build_model, num_parameters
from megatron_agent.policy.tokenizer import TAG_TOKENS, encode_prompt, train_tokenizer

pytestmark = pytest.mark.unit

FROZENLAKE = load_env("frozenlake")
SMALL = ModelShape(hidden=16, layers=1, heads=2, kv_heads=1)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(FROZENLAKE.corpus())


@pytest.mark.parametrize(
    "text",
    [
        "S F H G\nF F F F",
        "",
        "  two  spaces\n\n\ttab ",
        "naïve 日本語 🙂 \x00",
        "<action>x</action> 1234",
    ],
)
def test_any_text_decodes_to_itself(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_id_decodes_and_the_size_is_exact(tokenizer: Any) -> None:
    assert len(tokenizer) == 768
    assert all(isinstance(token, str) for token in tokenizer.convert_ids_to_tokens(range(768)))


def test_tags_are_single_tokens_that_survive_skipping_special_tokens(tokenizer: Any) -> None:
    assert all(len(tokenizer.encode(tag)) == 1 for tag in TAG_TOKENS)
    response = format_response("right")
    ids = [*tokenizer.encode(response), tokenizer.eos_token_id]
    assert len(ids) == 6
    assert tokenizer.decode(ids, skip_special_tokens=True) == response


def test_cells_and_coordinates_are_separate_tokens(tokenizer: Any) -> None:
    tokens = tokenizer.tokenize("P F H\nF F G\nPlayer: row 1 column 12")
    assert tokens[:12] == ["P", "ĠF", "ĠH", "Ċ", "F", "ĠF", "ĠG", "Ċ", "Player", ":", "Ġrow", "Ġ"]
    assert tokens[-2:] == ["1", "2"]


def test_special_tokens_are_chatml(tokenizer: Any) -> None:
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert all(len(tokenizer.encode(mark)) == 1 for mark in ("<|im_start|>", "<|im_end|>"))


def test_the_generation_prompt_plus_a_response_is_the_whole_conversation(tokenizer: Any) -> None:
    user = {"role": "user", "content": "Where to?"}
    answer = {"role": "assistant", "content": format_response("up")}
    prompt = tokenizer.apply_chat_template([user], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template([user, answer], tokenize=False)
    assert prompt == "<|im_start|>user\nWhere to?<|im_end|>\n<|im_start|>assistant\n"
    assert prompt + answer["content"] + "<|im_end|>\n" == whole
    assert encode_prompt(tokenizer, "Where to?") == tokenizer.encode(prompt)


def test_a_frozenlake_prompt_is_short(tokenizer: Any) -> None:
    observation = FROZENLAKE.make().reset(seed=0)
    context = PromptContext(observation=observation, step_idx=0, max_steps=15, history=())
    assert len(encode_prompt(tokenizer, FROZENLAKE.build_prompt(context))) < 120


def test_equal_texts_give_an_equal_tokenizer(tokenizer: Any) -> None:
    again = train_tokenizer(FROZENLAKE.corpus())
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("vocab_size", [256, 700])
def test_a_vocabulary_size_that_cannot_work_is_refused(vocab_size: int) -> None:
    with pytest.raises(ConfigError, match="vocab_size must be a multiple of 64 and at least 320"):
        train_tokenizer([], vocab_size=vocab_size)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
def test_the_default_shape_has_half_a_million_to_five_million_parameters(
    tokenizer: Any, arch: str
) -> None:
    model = build_model(ModelShape(arch=arch), tokenizer, seed=0)
    assert model.config.model_type == arch
    assert 500_000 < num_parameters(model) < 5_000_000
    untied = build_model(ModelShape(arch=arch, tied=False), tokenizer, seed=0)
    assert num_parameters(untied) == num_parameters(model) + 768 * 128


def test_the_seed_decides_the_weights_and_nothing_else_does(tokenizer: Any) -> None:
    import torch

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = build_model(SMALL, tokenizer, seed=1).state_dict()
    assert torch.equal(torch.rand(1), expected)  # global random state is left alone
    torch.manual_seed(6)
    second = build_model(SMALL, tokenizer, seed=1).state_dict()
    other = build_model(SMALL, tokenizer, seed=2).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_sampling_is_the_models_own_distribution(tokenizer: Any) -> None:
    config = build_model(SMALL, tokenizer, seed=0).generation_config
    assert (config.temperature, config.top_k, config.top_p) == (1.0, 0, 1.0)
    assert config.eos_token_id == tokenizer.eos_token_id
