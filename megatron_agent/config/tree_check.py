"""Checks every key and every type of a composed configuration against what verl and we know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from megatron_agent.config.fields import has_type, type_words
from megatron_agent.config.findings import Findings, nearest_key
from megatron_agent.config.overrides import is_free_form
from megatron_agent.config.settings import (
    ACTOR_KEY,
    PENALTY_KEY,
    PENALTY_KEYS,
    AlgorithmSettings,
)
from megatron_agent.config.values import MISSING, ConfigValues, leaf_items
from megatron_agent.config.verl_tree import target_fields, verl_defaults

CHECKED_WITH_SETTINGS: tuple[str, ...] = (
    "cluster.slurm",
    "cluster.hardware",
    "env",
    "plan",
    "run",
    *(f"algorithm.{field.name}" for field in fields(AlgorithmSettings)),
    PENALTY_KEY,
)
"""Keys and sections that `read_agent_settings` checks."""

OWN_KEYS: Mapping[str, Any] = {
    "cluster.data_parallel_size": int,
    "cluster.prefork": bool,
    # Seconds between looks for finished episodes; verl has 2.0 in its code.
    "trainer.poll_interval_s": float,
    "trainer.stop_grace_s": float,
    "trainer.max_rollout_probs_diff": float | None,
    "trainer.max_ckpt_to_keep": int | None,
    # A group of verl's own files, left in the composed configuration by its defaults list.
    "model_engine": str,
    **{f"{ACTOR_KEY}.{key}": Any for key in PENALTY_KEYS},
}
"""Our single keys and their types; those of the penalty are checked with its section."""

_ANNOTATIONS: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}


def check_tree(values: ConfigValues, findings: Findings) -> None:
    """Record keys that nobody reads and values of a wrong type.

    An unknown key of a plain verl section is a warning (verl's ``config.get`` reads a few keys that
    its defaults do not list), one of a section that becomes a dataclass is a problem (verl would
    reject it minutes later).
    """
    _check_node(values.tree, verl_defaults(), "", findings)


def known_keys() -> list[str]:
    """Every key of verl's defaults and our single keys, for suggestions."""
    return [*(key for key, _ in leaf_items(verl_defaults())), *OWN_KEYS]


def _check_node(
    node: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str, findings: Findings
) -> None:
    target = defaults.get("_target_")
    fields = target_fields(target) if target else None
    for name, value in node.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if key in CHECKED_WITH_SETTINGS or is_free_form(key):
            continue
        if key in OWN_KEYS:
            _check_type(key, value, OWN_KEYS[key], findings)
        elif name in defaults:
            _check_known(key, value, defaults[name], (fields or {}).get(name), findings)
        elif any(own.startswith(f"{key}.") for own in OWN_KEYS) and isinstance(value, Mapping):
            _check_node(value, {}, key, findings)
        elif fields is None or name not in fields:
            _report_unknown(key, value, is_problem=bool(fields) or not prefix, findings=findings)
        elif name in fields:
            _check_type(key, value, _ANNOTATIONS.get(fields[name], Any), findings)


def _check_known(
    key: str, value: Any, default: Any, annotation: str | None, findings: Findings
) -> None:
    if isinstance(default, Mapping):
        # An empty mapping in verl's defaults is a place for anything.
        if isinstance(value, Mapping) and default:
            _check_node(value, default, key, findings)
        elif not isinstance(value, Mapping) and value is not None:
            _check_type(key, value, dict, findings)
        return
    expected = _ANNOTATIONS.get(annotation or "") or _type_of_default(default)
    if value is not None:  # verl takes null for "not set" in most places
        _check_type(key, value, expected, findings)


def _type_of_default(default: Any) -> Any:
    """The type that a value must have when its default is ``default``.

    Interpolations, nulls and texts say too little: verl takes lists and numbers in places of these.
    """
    if isinstance(default, bool | int | float):
        return type(default)
    return Any


def _check_type(key: str, value: Any, expected: Any, findings: Findings) -> None:
    if not has_type(value, expected) and value != MISSING:
        remedy = f"Set {key} to {type_words(expected)}."
        findings.problem(key, f"must be {type_words(expected)}", value, remedy)


def _report_unknown(key: str, value: Any, *, is_problem: bool, findings: Findings) -> None:
    near = nearest_key(key, _siblings_first(key, known_keys()))
    hint = f"Did you mean {near!r}?" if near else "'megatron-agent show' prints every key."
    if is_problem:
        findings.problem(key, "is not a known key", value, hint)
    else:
        findings.warn(f"{key} is not a key that verl lists; it is handed on as it is. {hint}")


def _siblings_first(key: str, keys: Iterable[str]) -> list[str]:
    section = key.rpartition(".")[0]
    return sorted(keys, key=lambda known: not known.startswith(f"{section}."))
