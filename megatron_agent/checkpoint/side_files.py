"""The files beside the weights: configuration, tokenizer, generation defaults, chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from megatron_agent.atomic_file import atomic_file

SUFFIXES = (".json", ".txt", ".jinja", ".model", ".tiktoken")
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


def copy_side_files(source: Path, target: Path, dtype: torch.dtype | None) -> list[str]:
    """Copy them, and write ``dtype`` into the configuration; returns their names."""
    target.mkdir(exist_ok=True)
    names = []
    for path in side_files(source):
        shutil.copyfile(path, target / path.name)
        names.append(path.name)
    if dtype is not None:
        _set_dtype(target / "config.json", str(dtype).removeprefix("torch."))
    return names


def describe(names: list[str]) -> str:
    """Say which of the files that a server looks for are there.

    Example:
        >>> describe(["config.json", "tokenizer.json"])
        'config, tokenizer; no generation config, no chat template'
    """
    kinds = {
        "config": "config.json" in names,
        "tokenizer": any(name.startswith(("tokenizer", "vocab")) for name in names),
        "generation config": "generation_config.json" in names,
        "chat template": any("chat_template" in name for name in names),
    }
    absent = [f"no {kind}" for kind, present in kinds.items() if not present]
    present = ", ".join(kind for kind, there in kinds.items() if there)
    return "; ".join(text for text in (present, ", ".join(absent)) if text)


def _set_dtype(path: Path, name: str) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype"]
    config.update(dict.fromkeys(keys, name))
    with atomic_file(path) as file:
        file.write(json.dumps(config, indent=2, sort_keys=True) + "\n")
