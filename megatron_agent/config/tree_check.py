"""Checks every key and every type of a composed configuration against what verl and we know."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import yaml

from megatron_agent.config.fields import has_type, type_words
from megatron_agent.config.findings import Findings, nearest_key
from megatron_agent.config.overrides import CONFIGS_DIR, is_free_form
from megatron_agent.config.settings import (
    ACTOR_KEY,
    PENALTY_KEY,
    PENALTY_KEYS,
    AlgorithmSettings,
)
from megatron_agent.config.values import MISSING, ConfigValues, leaf_items
from megatron_agent.config.verl_tree import target_fields, verl_defaults
from megatron_agent.errors import ConfigError

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

NULL_IN_VERL: Mapping[str, Any] = {
    "data.seed": int,
    "data.gen_batch_size": int | None,
    "data.val_batch_size": int | None,
    "trainer.total_training_steps": int | None,
}
"""Keys of verl's whose default, a null, does not tell their type."""

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
NEVER_NULL: Mapping[str, str] = {
    "data.train_batch_size": "8",
    "data.max_prompt_length": "the environment's own",
    "data.max_response_length": "the environment's own",
    "data.seed": "env.seed",
    "trainer.nnodes": "the cluster's own",
    "trainer.n_gpus_per_node": "the cluster's own",
    "trainer.save_freq": "20",
    "trainer.test_freq": "10",
    "trainer.total_epochs": "1000000",
    "trainer.poll_interval_s": "0.1",
    "trainer.stop_grace_s": "60.0",
    "trainer.logger": "[console, tensorboard]",
    "algorithm.filter_groups.enable": "false",
    "algorithm.filter_groups.max_num_gen_batches": "10",
    f"{_ACTOR}.ppo_mini_batch_size": "data.train_batch_size",
    f"{_ACTOR}.ppo_epochs": "1",
    f"{_ACTOR}.ppo_max_token_len_per_gpu": "the cluster's own",
    f"{_ACTOR}.clip_ratio": "0.2",
    f"{_ACTOR}.clip_ratio_low": "0.2",
    f"{_ACTOR}.clip_ratio_high": "0.2",
    f"{_ACTOR}.entropy_coeff": "0",
    f"{_ACTOR}.kl_loss_coef": "0.001",
    f"{_ACTOR}.optim.lr": "the model's own",
    f"{_ACTOR}.optim.weight_decay": "0.01",
    f"{_ACTOR}.optim.clip_grad": "1.0",
    f"{_ACTOR}.megatron.tensor_model_parallel_size": "the cluster's own",
    f"{_ACTOR}.megatron.pipeline_model_parallel_size": "1",
    f"{_ACTOR}.megatron.context_parallel_size": "1",
    f"{_ACTOR}.megatron.expert_model_parallel_size": "1",
    f"{_ROLLOUT}.n": "env.rollout.n",
    f"{_ROLLOUT}.temperature": "1.0",
    f"{_ROLLOUT}.top_p": "1",
    f"{_ROLLOUT}.top_k": "-1",
    f"{_ROLLOUT}.gpu_memory_utilization": "the cluster's own",
    f"{_ROLLOUT}.tensor_model_parallel_size": "1",
    f"{_ROLLOUT}.data_parallel_size": "1",
    f"{_ROLLOUT}.expert_parallel_size": "1",
    f"{_ROLLOUT}.pipeline_model_parallel_size": "1",
    f"{_ROLLOUT}.agent.num_workers": "the cluster's own",
    f"{_ROLLOUT}.val_kwargs.n": "1",
    f"{_ROLLOUT}.val_kwargs.temperature": "1.0",
    f"{_ROLLOUT}.val_kwargs.top_p": "1.0",
    f"{_ROLLOUT}.val_kwargs.top_k": "-1",
}
"""Keys that a run cannot do without, and their defaults. The rules are silent on a null."""

_INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)")

_ANNOTATIONS: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}


def check_tree(values: ConfigValues, findings: Findings) -> None:
    """Record keys that nobody reads and values of a wrong type.

    An unknown key of a plain verl section is a warning (verl's ``config.get`` reads a few keys that
    its defaults do not list), one of a section that becomes a dataclass is a problem (verl would
    reject it minutes later). A key that is gone, or null where that says nothing, is a problem.
    """
    wrong = Findings()
    _check_node(values.tree, verl_defaults(), "", wrong)
    _drop_followers(wrong)
    findings.problems += wrong.problems
    findings.warnings += wrong.warnings
    _check_given(values, findings)


def _drop_followers(findings: Findings) -> None:
    """Keep a value that is wrong in one key from being reported in those that take theirs from it.

    Example:
        ``rollout.prompt_length: ${oc.select:data.max_prompt_length,512}``
    """
    trees = [ConfigValues(tree) for tree in (_base_file(), verl_defaults())]
    reported = {problem.key: problem.value for problem in findings.problems}

    def follows(problem: ConfigError) -> bool:
        section = problem.key.rpartition(".")[0]
        for found in (_INTERPOLATION.match(str(tree.get(problem.key))) for tree in trees):
            source = found[1] if found else ""
            key = f"{section}{source}" if source.startswith(".") else source
            if reported.get(key, MISSING) == problem.value:
                return True
        return False

    findings.problems[:] = [problem for problem in findings.problems if not follows(problem)]


@functools.cache
def _base_file() -> Mapping[str, Any]:
    """What every run shares, interpolations left as text."""
    tree: Mapping[str, Any] = yaml.safe_load((CONFIGS_DIR / "base.yaml").read_text("utf-8"))
    return tree


def known_keys() -> list[str]:
    """Every key of verl's defaults and our single keys, for suggestions."""
    return [*(key for key, _ in leaf_items(verl_defaults())), *OWN_KEYS]


def _check_given(values: ConfigValues, findings: Findings) -> None:
    sections: list[str] = []
    for key, default in NEVER_NULL.items():
        absent = _first_absent(values, key)
        if absent == key:
            remedy = f"Leave it at its default ({default})."
            findings.problem(key, "must be given", None, remedy)
        elif absent is not None and absent not in sections:
            sections.append(absent)
            remedy = f"Leave the section, and set keys below {absent}."
            findings.problem(absent, "must be given", None, remedy)


def _first_absent(values: ConfigValues, key: str) -> str | None:
    """``key`` or the outermost section of it that is null or gone, if any is."""
    parts = key.split(".")
    for depth in range(1, len(parts) + 1):
        outer = ".".join(parts[:depth])
        if values.get(outer) in (None, MISSING):
            return outer
        if depth < len(parts) and not isinstance(values.get(outer), Mapping):
            return None  # reported as of a wrong type
    return None


def _check_node(
    node: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str, findings: Findings
) -> None:
    target = defaults.get("_target_")
    fields = target_fields(target) if target else None
    for name, value in node.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if key in CHECKED_WITH_SETTINGS or is_free_form(key):
            continue
        if key in NEVER_NULL and value is None:
            continue  # reported by _check_given
        if key in OWN_KEYS:
            _check_type(key, value, OWN_KEYS[key], findings)
        elif key in NULL_IN_VERL:
            _check_type(key, value, NULL_IN_VERL[key], findings)
        elif name in defaults:
            _check_known(key, value, defaults[name], (fields or {}).get(name), findings)
        elif any(own.startswith(f"{key}.") for own in OWN_KEYS) and isinstance(value, Mapping):
            _check_node(value, {}, key, findings)
        elif fields is None or name not in fields:
            _report_unknown(key, value, is_problem=bool(fields) or not prefix, findings=findings)
        elif name in fields:
            _check_type(key, value, _ANNOTATIONS.get(fields[name], Any), findings)
    if fields is None:  # a dataclass fills the gaps itself
        _check_deleted(node, defaults, prefix, findings)


def _check_deleted(
    node: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str, findings: Findings
) -> None:
    """verl reads every key of its plain sections; ``~data`` takes most of one away."""
    keys = [f"{prefix}.{name}" if prefix else name for name in defaults if name not in node]
    gone = [key for key in keys if not _is_reported_elsewhere(key)]
    if not gone:
        return
    more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
    findings.problem(
        prefix or "the configuration",
        "must have every key that verl reads of it",
        f"no {', '.join(gone[:3])}{more}",
        "Do not delete with '~'; a null means 'not set'.",
    )


def _is_reported_elsewhere(key: str) -> bool:
    own = (*NEVER_NULL, *CHECKED_WITH_SETTINGS)
    return any(known == key or known.startswith(f"{key}.") for known in own)


def _check_known(
    key: str, value: Any, default: Any, annotation: str | None, findings: Findings
) -> None:
    if isinstance(default, Mapping):
        # An empty mapping in verl's defaults is a place for anything.
        if isinstance(value, Mapping) and default:
            _check_node(value, default, key, findings)
        elif not isinstance(value, Mapping) and (value is not None or _is_whole_section(key)):
            _check_type(key, value, dict, findings)
        return
    expected = _ANNOTATIONS.get(annotation or "") or _type_of_default(default)
    if value is not None:  # verl takes null for "not set" in most places
        _check_type(key, value, expected, findings)


def _is_whole_section(key: str) -> bool:
    """Whether verl reads keys below ``key`` without a look whether it is there."""
    return "." not in key and not _is_reported_elsewhere(key)


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
