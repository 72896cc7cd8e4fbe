"""A model folder that is only a shape, and a check that answers with messages."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from megatron_agent.config import Findings, composition
from megatron_agent.config.validation import check_values
from megatron_agent.config.values import ConfigValues

Messages = Callable[..., list[str]]


@functools.cache
def composed(root: str) -> tuple[DictConfig, Mapping[str, Any], str]:
    """A root with its interpolations, without them, and as text."""
    config = composition._compose(root, [])
    return config, composition.as_plain(config), OmegaConf.to_yaml(config)


def values_with(root: str, overrides: list[Override]) -> ConfigValues:
    """The root with ``overrides`` set.

    Composing, or even resolving, for each case would take most of the tier's time. So values are
    set on the resolved tree, unless another key takes its value from theirs.
    """
    config, plain, text = composed(root)
    # No rule looks at the keys that follow the model's path.
    keys = {override.key_or_group for override in overrides} - {"actor_rollout_ref.model.path"}
    is_source = any(re.search(rf"[{{:]{re.escape(key)}[,}}]", text) for key in keys)
    tree: Any = config.copy() if is_source else copy.deepcopy(plain)
    if is_source:
        OmegaConf.set_struct(tree, False)
    for override in overrides:
        *parents, name = override.key_or_group.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {}) if isinstance(node, dict) else node[parent]
        if override.is_delete():
            node.pop(name)
        else:
            node[name] = override.value()
    return ConfigValues.from_config(tree) if is_source else ConfigValues(tree)


@pytest.fixture
def findings_of(model_folder: Path) -> Callable[..., Findings]:
    """``findings_of("key=value", root="gigpo")``: what is found, given a valid model folder."""

    def find(*overrides: str, root: str = "gigpo") -> Findings:
        lines = [f"actor_rollout_ref.model.path={model_folder}", *overrides]
        given = OverridesParser.create().parse_overrides(lines)
        # The last one counts, as on the command line.
        given = list({override.key_or_group: override for override in given}.values())
        findings = Findings()
        check_values(values_with(root, given), findings)
        return findings

    return find


@pytest.fixture
def problems_of(findings_of: Callable[..., Findings]) -> Messages:
    """Like ``findings_of``, but only the messages of the problems."""

    def find(*overrides: str, root: str = "gigpo") -> list[str]:
        return [str(problem) for problem in findings_of(*overrides, root=root).problems]

    return find
