"""The tokenizer fits the model, and a response can end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import Finding, error, reason, warning
from megatron_agent.doctor.registry import check

_AGAIN = "Copy the tokenizer's files from the model that the weights come from."


@check("tokenizer", "the tokenizer loads, fits the embedding, and has the tokens that end and pad")
def check_tokenizer(case: RunCase) -> Iterator[Finding]:
    """Ids inside the embedding; special tokens named by the files exist and agree."""
    case.existing_model_folder()
    tokenizer = case.tokenizer
    if isinstance(tokenizer, Exception):
        yield error("tokenizer", f"must load ({reason(tokenizer)})", _AGAIN)
        return
    vocab_size = case.model_config.get("vocab_size")
    if isinstance(vocab_size, int) and len(tokenizer) > vocab_size:
        problem = f"must have at most the {vocab_size} ids of the embedding, got {len(tokenizer)}"
        yield error("tokenizer", problem, _AGAIN)
    if tokenizer.eos_token_id is None:
        problem = "must name the token that ends a response (eos_token), got none"
        yield error("tokenizer", problem, "Set eos_token in tokenizer_config.json.")
    elif tokenizer.eos_token_id not in (ends := end_ids(case)):
        problem = (
            f"ends with {tokenizer.eos_token!r} ({tokenizer.eos_token_id}), which generation_config"
            f".json and config.json do not name (eos_token_id: {sorted(ends)})"
        )
        yield warning("tokenizer", problem, "Make the three files agree.")
    if tokenizer.pad_token_id is None:
        problem = "should name a token for padding (pad_token); verl takes the one that ends"
        yield warning("tokenizer", problem, "Set pad_token in tokenizer_config.json.")


def end_ids(case: RunCase) -> set[int]:
    """Ids at which a server stops, as the model's files name them."""
    for name in ("generation_config.json", "config.json"):
        ids = _as_ids(case.model_json(name).get("eos_token_id"))
        if ids:
            return ids
    return _as_ids(getattr(case.tokenizer, "eos_token_id", None))


def _as_ids(value: Any) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {number for number in values if isinstance(number, int)}
