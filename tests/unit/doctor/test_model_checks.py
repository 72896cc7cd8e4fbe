"""Weights, tokenizer and chat template of a model folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from megatron_agent.doctor.checks import weights
from megatron_agent.doctor.findings import Finding, Severity

pytestmark = pytest.mark.unit

Find = Callable[..., list[Finding]]
Folder = Any  # of conftest.py

QWEN3_LIKE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and not loop.last %}"
    "{{ message.content.split('</think>')[-1] }}{% else %}{{ message.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_weights_that_the_index_names_must_be_there(folder: Folder, findings_of: Find) -> None:
    weight_map = {"lm_head.weight": "model-00002-of-00002.safetensors"}
    folder.edit_json("model.safetensors.index.json", weight_map=weight_map)
    finding = _only(findings_of("weights"))
    assert "names files that are not there (model-00002-of-00002.safetensors)" in str(finding)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes are too few for its header"),
        (b"\xff" * 20, "20 bytes are too few for its header"),
        (b"\x02" + b"\x00" * 7 + b"[x", "its header is no JSON"),
        (b"\x09" + b"\x00" * 7 + b'{"a": {}}', "its header does not describe tensors"),
    ],
)
def test_a_file_that_is_no_safetensors_file_is_told(
    folder: Folder, findings_of: Find, content: bytes, words: str
) -> None:
    (folder.model / "other.safetensors").write_bytes(content)
    assert words in _only(findings_of("weights")).problem


def test_layers_of_the_weights_and_of_the_configuration_are_compared(
    folder: Folder, findings_of: Find
) -> None:
    folder.edit_json("config.json", num_hidden_layers=3)
    assert "must match the weights, which have 2 layers, got 3" in str(
        _only(findings_of("weights"))
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"auto_map": {"AutoModel": "x.Y"}}, "must not need code of its own"),
        ({"quantization_config": {"bits": 4}}, "must not be quantized"),
        ({"architectures": None}, "got None"),
    ],
)
def test_models_that_megatron_cannot_train_are_told(
    folder: Folder, findings_of: Find, changes: dict[str, Any], words: str
) -> None:
    folder.edit_json("config.json", **changes)
    assert words in _only(findings_of("model")).problem


def test_on_gpus_the_architectures_are_those_of_megatron_bridge(
    folder: Folder, findings_of: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "bridge_architectures", lambda: ("LlamaForCausalLM",))
    finding = _only(findings_of("model", "trainer.device=cuda"))
    assert "known to Megatron-Bridge (LlamaForCausalLM), got 'Qwen2ForCausalLM'" in str(finding)


def test_checks_of_a_model_stay_out_where_there_is_none(
    folder: Folder, is_left_out: Callable[..., str]
) -> None:
    shutil.rmtree(folder.model)
    for name in ("model", "weights", "tokenizer"):
        assert is_left_out(name) == "no model folder"
    assert is_left_out("chat_template") == "no tokenizer"


def test_a_tokenizer_that_does_not_load_says_why(folder: Folder, findings_of: Find) -> None:
    (folder.model / "tokenizer.json").write_text("{")
    (folder.model / "vocab.json").unlink(missing_ok=True)
    finding = _only(findings_of("tokenizer"))
    assert finding.problem.startswith("must load (")


def test_a_configuration_that_contradicts_itself_is_its_own_finding_and_hides_none(
    folder: Folder, findings_of: Find
) -> None:
    types = ["full_attention"] * 2
    folder.edit_json("config.json", num_hidden_layers=3, layer_types=types, vocab_size=256)
    model = _only(findings_of("model"))
    assert model.subject == "config.json"
    assert "(3) must be equal to the number of layer types (2)" in model.problem
    assert "at most the 256 ids of the embedding" in str(_only(findings_of("tokenizer")))
    assert findings_of("chat_template") == []


def test_a_truncated_shard_hides_nothing_that_its_header_says(
    folder: Folder, findings_of: Find
) -> None:
    folder.edit_json("config.json", num_hidden_layers=3, vocab_size=384, hidden_size=16)
    shard = folder.model / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-16])
    assert [finding.subject for finding in findings_of("weights")] == [
        "model.safetensors",
        "config.json: num_hidden_layers",
        "config.json: vocab_size",
        "config.json: hidden_size",
    ]


def test_a_tokenizer_larger_than_the_embedding_is_an_error(
    folder: Folder, findings_of: Find
) -> None:
    folder.edit_json("config.json", vocab_size=256)
    finding = _only(findings_of("tokenizer"))
    assert "must have at most the 256 ids of the embedding, got 320" in str(finding)


@pytest.mark.parametrize(
    ("key", "severity", "words"),
    [
        ("eos_token", Severity.ERROR, "must name the token that ends a response"),
        ("pad_token", Severity.WARNING, "should name a token for padding"),
    ],
)
def test_missing_special_tokens_are_told(
    folder: Folder, findings_of: Find, key: str, severity: Severity, words: str
) -> None:
    folder.edit_json("tokenizer_config.json", **{key: None})
    finding = _only(findings_of("tokenizer"))
    assert (finding.severity, finding.subject) == (severity, "tokenizer")
    assert words in finding.problem


def test_a_model_without_a_template_cannot_be_prompted(folder: Folder, findings_of: Find) -> None:
    (folder.model / "chat_template.jinja").unlink()
    assert "must be there: prompts are chat messages" in str(_only(findings_of("chat_template")))


def test_a_template_that_wants_a_system_message_is_an_error(
    folder: Folder, findings_of: Find
) -> None:
    folder.set_template("{{ raise_exception('begin with a system message') }}")
    finding = _only(findings_of("chat_template"))
    assert "must take a conversation of one user message" in finding.problem
    assert "begin with a system message" in finding.problem


def test_a_date_in_the_template_is_a_warning(folder: Folder, findings_of: Find) -> None:
    folder.set_template("{{ strftime_now('%Y') }} " + CHATML)
    finding = _only(findings_of("chat_template"))
    assert finding.severity is Severity.WARNING
    assert "should not show the date" in finding.problem


def test_a_template_that_edits_the_prompt_is_an_error_that_shows_what_was_lost(
    folder: Folder, findings_of: Find
) -> None:
    folder.set_template(CHATML.replace("message.content", "message.content.replace('H G', '')"))
    finding = _only(findings_of("chat_template"))
    assert finding.severity is Severity.ERROR
    assert "lost or changed: '  H G'" in finding.problem


def test_dropping_earlier_reasoning_is_noted_since_prompts_are_one_message(
    folder: Folder, findings_of: Find
) -> None:
    folder.set_template(QWEN3_LIKE)
    assert _only(findings_of("chat_template")).severity is Severity.NOTE


def test_a_generation_prompt_that_no_conversation_contains_is_a_warning(
    folder: Folder, findings_of: Find
) -> None:
    folder.set_template(CHATML.replace("assistant\n{%", "assistant\n<answer>{%"))
    finding = _only(findings_of("chat_template"))
    assert "should begin a conversation with the prompt that led to it" in finding.problem


def test_an_answer_that_ends_without_a_stop_token_is_a_warning(
    folder: Folder, findings_of: Find
) -> None:
    folder.set_template(CHATML.replace("<|im_end|>", "<|end|>"))
    finding = _only(findings_of("chat_template"))
    assert "should end an answer with a token that stops generation" in finding.problem


def test_template_options_of_the_configuration_are_used(folder: Folder, findings_of: Find) -> None:
    folder.set_template("{% if not date_string %}{{ strftime_now('%Y') }}{% endif %}" + CHATML)
    fixed = "+data.apply_chat_template_kwargs.date_string=2024"
    assert findings_of("chat_template", fixed) == []
