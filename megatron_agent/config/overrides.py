"""What a user typed after ``megatron-agent train``, parsed; what cannot be meant gets a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from megatron_agent.config.findings import Findings, nearest_key
from megatron_agent.config.values import ConfigValues, leaf_items

CONFIGS_DIR = Path(__file__).resolve().parents[2] / "configs"
DEFAULT_ROOT = "gigpo"
GROUPS: tuple[str, ...] = ("env", "model", "cluster", "credit", "experiment")

FREE_FORM_KEYS: tuple[str, ...] = (
    "cluster.slurm.environment",
    "env.options",
    "ray_kwargs.ray_init",
    "actor_rollout_ref.rollout.engine_kwargs.sglang",
    "trainer.v1.sampler.sampler_kwargs",
    "data.apply_chat_template_kwargs",
)
"""Mappings that take any key, without Hydra's ``+``; so do all named ``override_...``."""

TIME_KEY = "cluster.slurm.time"
"""Text that may look like a number."""

_ABSENT = object()


def is_free_form(key: str) -> bool:
    """Whether ``key`` is a mapping that takes any keys below it.

    Example:
        >>> is_free_form("critic.megatron.override_transformer_config"), is_free_form("data")
        (True, False)
    """
    return key in FREE_FORM_KEYS or key.rpartition(".")[2].startswith("override_")


def root_names() -> tuple[str, ...]:
    """Names that ``--config-name`` takes: one root per algorithm."""
    return tuple(sorted(path.stem for path in CONFIGS_DIR.glob("*.yaml") if path.stem != "base"))


def group_options(group: str) -> tuple[str, ...]:
    """Names that ``<group>=...`` takes."""
    names = (path.stem for path in (CONFIGS_DIR / group).glob("*.yaml"))
    return tuple(sorted(name for name in names if name != "base"))


def parse_overrides(overrides: Sequence[str], findings: Findings) -> list[Override]:
    """Parse each override alone; those that do not parse, and sweeps, are recorded and left out."""
    parser = OverridesParser.create()
    parsed: list[Override] = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException:
            remedy = "Quote a value with special characters: 'key=\"a, b\"'."
            findings.problem("override", "must be key=value", text, remedy)
            continue
        if override.is_sweep_override():
            remedy = "Start one run per value, or quote a text with commas."
            findings.problem(override.key_or_group, "must be a single value", text, remedy)
            continue
        parsed.append(override)
    return parsed


def is_group(override: Override) -> bool:
    """Whether the override chooses a file (``cluster=cpu``) rather than sets a value."""
    return override.key_or_group in GROUPS and not override.is_delete()


def check_root(name: str, findings: Findings) -> str:
    """``name`` when it is a root, else the default one with the problem recorded."""
    names = root_names()
    if name in names:
        return name
    remedy = _did_you_mean(name, names) or "Choose one of them."
    findings.problem("--config-name", f"must be one of {', '.join(names)}", name, remedy)
    return DEFAULT_ROOT


def group_lines(parsed: Sequence[Override], findings: Findings) -> list[str]:
    """The group choices whose files exist; the others are recorded."""
    lines: list[str] = []
    for override in filter(is_group, parsed):
        group, choice = override.key_or_group, override.value()
        options = group_options(group)
        if choice is None and group == "experiment":
            continue  # the default, which Hydra does not take as an override
        if choice in options:
            lines.append(str(override.input_line))
            continue
        remedy = _did_you_mean(str(choice), options) or f"The files are configs/{group}/*.yaml."
        if group == "env":
            remedy += " For an environment without a file: env=custom env.env_name=NAME."
        findings.problem(group, f"must be one of {', '.join(options)}", choice, remedy)
    return lines


def hydra_line(override: Override) -> str:
    """The override as Hydra takes it; below a free-form mapping a key may be new."""
    line = str(override.input_line)
    # Here 90 can mean nothing but 90 minutes. In a file a number is refused: YAML reads 1:30 as 90.
    if override.key_or_group == TIME_KEY and type(override.value()) is int:
        name, _, number = line.partition("=")
        line = f'{name}="{number.strip()}"'
    parts = override.key_or_group.split(".")
    is_free = any(is_free_form(".".join(parts[:depth])) for depth in range(1, len(parts)))
    return f"++{line}" if is_free and line[0] not in "+~" else line


def drop_unknown(
    parsed: Sequence[Override], base_tree: Mapping[str, Any], findings: Findings
) -> list[Override]:
    """Value overrides whose key exists in ``base_tree`` or is added on purpose; the others are
    recorded.

    Args:
        parsed: overrides that parsed.
        base_tree: plain nested dicts of the configuration without these overrides.
        findings: receives unknown keys, each with the nearest known one.
    """
    values = ConfigValues(base_tree)
    known_keys = [key for key, _ in leaf_items(base_tree)]
    known: list[Override] = []
    for override in parsed:
        key = override.key_or_group
        is_added = hydra_line(override).startswith("+")
        if is_added or values.get(key, _ABSENT) is not _ABSENT:
            known.append(override)
            continue
        remedy = _did_you_mean(key, known_keys) or "'megatron-agent show' prints every key."
        value = None if override.is_delete() else override.value()
        findings.problem(key, "is not a known key", value, remedy)
    return known


def _did_you_mean(name: str, names: Sequence[str]) -> str | None:
    near = nearest_key(name, names)
    return f"Did you mean {near!r}?" if near else None
