"""A model folder that is only a shape, and a check that answers with messages."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from megatron_agent.config import Findings, check_config, composition

Messages = Callable[..., list[str]]

SHAPE = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPE))
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").write_text("{}")
    return folder


@functools.cache
def unresolved(root: str) -> DictConfig:
    return composition._compose(root, [])


@pytest.fixture
def findings_of(model_folder: Path) -> Callable[..., Findings]:
    """``findings_of("key=value", ..., root="gigpo")``: what is found, given a valid model folder.

    Overrides are set on one composed configuration, before interpolations are resolved: composing
    for each case would take most of the tier's time.
    """

    def find(*overrides: str, root: str = "gigpo") -> Findings:
        config = unresolved(root).copy()
        OmegaConf.set_struct(config, False)
        config.actor_rollout_ref.model.path = str(model_folder)
        for override in OverridesParser.create().parse_overrides(list(overrides)):
            section, _, name = override.key_or_group.rpartition(".")
            if override.is_delete():
                OmegaConf.select(config, section).pop(name)
            else:
                OmegaConf.update(config, override.key_or_group, override.value(), merge=False)
        findings = Findings()
        check_config(config, findings)
        return findings

    return find


@pytest.fixture
def problems_of(findings_of: Callable[..., Findings]) -> Messages:
    """Like ``findings_of``, but only the messages of the problems."""

    def find(*overrides: str, root: str = "gigpo") -> list[str]:
        return [str(problem) for problem in findings_of(*overrides, root=root).problems]

    return find
