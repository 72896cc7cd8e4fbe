"""The files beside the weights: configuration, tokenizer, generation defaults, chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from megatron_agent.atomic_file import atomic_file

SUFFIXES = (".json", ".txt", ".jinja", ".model", ".tiktoken")
_TOKENIZER_OPTIONS = "tokenizer_config.json"
EXCLUDED = ("conversion.json", "adapter_config.json")


def side_files(folder: Path) -> list[Path]:
    """Files to carry along: no weights, no index of weights, no code, no pickles."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file()
        and path.suffix in SUFFIXES
        and not path.name.endswith(".index.json")
        and path.name not in EXCLUDED
    )


def copy_side_files(source: Path, target: Path, dtype: torch.dtype | None) -> None:
    """Copy them, and write ``dtype`` into the configuration."""
    target.mkdir(exist_ok=True)
    for path in side_files(source):
        shutil.copyfile(path, target / path.name)
    if dtype is not None:
        _set_dtype(target / "config.json", str(dtype).removeprefix("torch."))


def found(folder: Path) -> dict[str, bool]:
    """Which of the files that a server looks for are there."""
    names = {path.name for path in side_files(folder)} if folder.is_dir() else set()
    options = folder / _TOKENIZER_OPTIONS  # may hold a chat template, as older ones do
    return {
        "config": "config.json" in names,
        "tokenizer": any(
            name.startswith(("tokenizer", "vocab")) for name in names - {_TOKENIZER_OPTIONS}
        ),
        "generation config": "generation_config.json" in names,
        "chat template": any("chat_template" in name for name in names)
        or (options.is_file() and b'"chat_template"' in options.read_bytes()),
    }


def describe(found: Mapping[str, bool]) -> str:
    """Say which there are and which are not.

    Example:
        >>> describe({"config": True, "tokenizer": True, "chat template": False})
        'config, tokenizer; no chat template'
    """
    present = ", ".join(kind for kind, there in found.items() if there)
    absent = ", ".join(f"no {kind}" for kind, there in found.items() if not there)
    return "; ".join(text for text in (present, absent) if text)


def _set_dtype(path: Path, name: str) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype"]
    config.update(dict.fromkeys(keys, name))
    with atomic_file(path) as file:
        file.write(json.dumps(config, indent=2, sort_keys=True) + "\n")
