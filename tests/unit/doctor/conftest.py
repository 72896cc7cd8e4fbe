"""A folder from which a run could start: model, tokenizer, tasks. Tests then break it."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from safetensors.numpy import save_file

from megatron_agent.config import Findings, as_plain, compose_config
from megatron_agent.config.validation import check_values
from megatron_agent.config.values import ConfigValues
from megatron_agent.doctor import Finding, RunCase, all_checks
from megatron_agent.doctor.findings import DoesNotApply
from megatron_agent.policy.tokenizer import train_tokenizer
from megatron_agent.tasks import generate_tasks, write_tasks

VOCAB_SIZE = 320
MODEL_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


@dataclass
class Folder:
    """A run's files, and the overrides that name them."""

    path: Path

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def tokenizer_config(self) -> dict[str, Any]:
        return json.loads((self.model / "tokenizer_config.json").read_text())

    def overrides(self, *more: str) -> list[str]:
        return [
            "experiment=frozenlake_cpu",
            f"run.dir={self.path / 'run'}",
            f"actor_rollout_ref.model.path={self.model}",
            f"data.train_files={self.path / 'train.parquet'}",
            f"data.val_files={self.path / 'eval.parquet'}",
            "env.num_workers=1",
            # A tokenizer that has seen three words spells the others out.
            "data.max_prompt_length=300",
            *more,
        ]

    def edit_json(self, name: str, **changes: Any) -> None:
        """Change keys of a JSON file of the model, which may not exist yet."""
        path = self.model / name
        content = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**content, **changes}))

    def set_template(self, template: str) -> None:
        (self.model / "chat_template.jinja").write_text(template)


@functools.cache
def composed() -> Mapping[str, Any]:
    """The experiment that all cases start from. Composing it for each would take minutes."""
    return as_plain(compose_config(["experiment=frozenlake_cpu"]))


def values_with(overrides: list[str]) -> ConfigValues:
    """The experiment with ``overrides`` set on it, as plain values."""
    tree = copy.deepcopy(dict(composed()))
    for override in OverridesParser.create().parse_overrides(overrides):
        *parents, name = override.key_or_group.split(".")
        node: Any = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        if parents:  # "experiment=..." is a file, and in the tree already
            node[name] = override.value()
    return ConfigValues(tree)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["Move right."], vocab_size=VOCAB_SIZE).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, tokenizer_folder: Path) -> Folder:
    """Nothing is wrong with it."""
    made = Folder(tmp_path)
    made.model.mkdir()
    for file in tokenizer_folder.iterdir():
        (made.model / file.name).write_bytes(file.read_bytes())
    made.edit_json("config.json", **MODEL_CONFIG)
    weights = {"model.embed_tokens.weight": np.zeros((VOCAB_SIZE, 8), np.float32)}
    for layer in range(2):
        weights[f"model.layers.{layer}.mlp.up_proj.weight"] = np.zeros((8, 8), np.float32)
    save_file(weights, made.model / "model.safetensors")
    tasks = generate_tasks("frozenlake", 16, 4, seed=0)
    for split in ("train", "eval"):
        write_tasks(tmp_path / f"{split}.parquet", [t for t in tasks if t.split == split])
    return made


@pytest.fixture
def findings_of(folder: Folder) -> Callable[..., list[Finding]]:
    """``findings_of("weights", "key=value")``: what one check says about the folder."""

    def find(name: str, *overrides: str) -> list[Finding]:
        (check,) = [check for check in all_checks() if check.name == name]
        values, config_findings = values_with(folder.overrides(*overrides)), Findings()
        if name in ("configuration", "registration"):
            check_values(values, config_findings)
        return list(check.find(RunCase(values, config_findings, OmegaConf.create())))

    return find


@pytest.fixture
def is_left_out(findings_of: Callable[..., list[Finding]]) -> Callable[..., str]:
    """Why a check has nothing to look at; empty when it has."""

    def reason(name: str, *overrides: str) -> str:
        try:
            findings_of(name, *overrides)
        except DoesNotApply as stated:
            return str(stated)
        return ""

    return reason
