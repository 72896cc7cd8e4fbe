"""Rules of the model folder: that it is there, is one, and holds sequences as long as asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_agent.config.findings import Findings
from megatron_agent.config.rules.layout import check_shape
from megatron_agent.config.values import ConfigValues

MODEL_KEY = "actor_rollout_ref.model.path"
TOKENIZER_FILES: tuple[str, ...] = ("tokenizer.json", "tokenizer.model", "vocab.json")


def check_model(values: ConfigValues, findings: Findings) -> None:
    """The model folder is a Hugging Face folder, and layout and lengths fit the model in it."""
    path = values.text(MODEL_KEY)
    if path is None:
        findings.problem(MODEL_KEY, "must be given", values.get(MODEL_KEY), _make_policy("..."))
        return
    _check_lengths(values, {}, findings)
    folder = Path(path).expanduser()
    if not folder.is_dir():
        remedy = f"{_make_policy(path)} A model of the Hub must be downloaded first."
        findings.problem(MODEL_KEY, "must be an existing folder", path, remedy)
        return
    shape = _read_shape(folder, findings)
    if shape is not None:
        check_shape(values, shape, findings)
        _check_lengths(values, shape, findings)


def _read_shape(folder: Path, findings: Findings) -> Mapping[str, Any] | None:
    rule = "must be a Hugging Face model folder"
    missing = [
        words
        for words, is_there in (
            ("config.json", (folder / "config.json").is_file()),
            ("*.safetensors", any(folder.glob("*.safetensors"))),
            (
                " or ".join(TOKENIZER_FILES),
                any((folder / name).is_file() for name in TOKENIZER_FILES),
            ),
        )
        if not is_there
    ]
    if missing:
        found = f"{rule} (no {', no '.join(missing)})"
        findings.problem(MODEL_KEY, found, str(folder), _make_policy("another folder"))
        return None
    try:
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        remedy = "Make or download the model again."
        findings.problem(MODEL_KEY, f"{rule} (config.json: {error})", str(folder), remedy)
        return None
    if not isinstance(shape, dict):
        remedy = "Make or download the model again."
        findings.problem(MODEL_KEY, f"{rule} (config.json is no object)", str(folder), remedy)
        return None
    # Models that also see keep the sizes of the language model one level down.
    text_shape = shape.get("text_config")
    return text_shape if isinstance(text_shape, dict) else shape


def _check_lengths(values: ConfigValues, shape: Mapping[str, Any], findings: Findings) -> None:
    lengths = {
        key: values.integer(key) for key in ("data.max_prompt_length", "data.max_response_length")
    }
    for key, length in lengths.items():
        if not shape and length is not None and length < 1:
            findings.problem(key, "must be >= 1", length, "Use at least 16 tokens.")
    longest_row = sum(length or 0 for length in lengths.values())
    limits = {
        "the model's max_position_embeddings": shape.get("max_position_embeddings"),
        "actor_rollout_ref.rollout.engine_kwargs.sglang.max_total_tokens": values.integer(
            "actor_rollout_ref.rollout.engine_kwargs.sglang.max_total_tokens"
        ),
    }
    for name, limit in limits.items():
        if shape and isinstance(limit, int) and longest_row > limit:
            findings.problem(
                "data.max_prompt_length",
                f"plus data.max_response_length must be <= {name} ({limit})",
                longest_row,
                "Shorten one of them, or use a model with a longer context.",
            )


def _make_policy(path: str) -> str:
    return f"Make a tiny one: python tools/make_policy.py --out {path}."
