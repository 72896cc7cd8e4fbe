"""One row of a task file: what is in it, and what is wrong with it.

A row has the columns that verl's ``RLHFDataset`` reads; what a task is travels in ``extra_info``:
index, env, task_id, seed, split, options_json. Nothing unknown is let through, so that a misspelt
field is an error and not a default.

A task file is data: an environment's name that loads code (``package.module:Class`` and the like)
is followed only where the configuration or the command line names the same one.
"""

from __future__ import annotations

import json
import numbers
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from envs.registry import EnvLoadError, EnvNotFoundError, EnvSpec, load_env
from megatron_agent.errors import TaskError
from megatron_agent.types import AGENT_NAME

_SPLITS = ("train", "eval")
_EXTRA_TYPES: Mapping[str, type] = {
    "index": int,
    "env": str,
    "task_id": str,
    "seed": int,
    "split": str,
    "options_json": str,
}
_COLUMNS = ("prompt", "data_source", "agent_name", "ability", "reward_model", "extra_info")
SCHEMA = pa.schema(
    [
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("data_source", pa.string()),
        ("agent_name", pa.string()),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    (key, pa.int64() if kind is int else pa.string())
                    for key, kind in _EXTRA_TYPES.items()
                ]
            ),
        ),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvTask:
    """One task: equal tasks start equal episodes, in any process."""

    env: str
    """Exact registry name."""
    task_id: str
    """Unique in a file."""
    seed: int
    split: str
    """``train`` or ``eval``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON values, handed to the environment's ``reset``."""


def task_from_extra_info(
    extra_info: Mapping[str, Any], where: str = "extra_info", *, code_names: Collection[str] = ()
) -> EnvTask:
    """The task in one row's ``extra_info``, as verl hands it to an agent loop.

    Args:
        extra_info: the six keys named at the top of this file, no more and no fewer.
        where: what the message of an error starts with.
        code_names: names with a colon that somebody who is trusted has named.

    Raises:
        TaskError: as for `read_tasks`.
    """
    _check_keys(extra_info, tuple(_EXTRA_TYPES), where)
    for key, kind in _EXTRA_TYPES.items():
        _check_type(extra_info[key], kind, f"{where}, field {key!r}")
    if extra_info["split"] not in _SPLITS:
        raise TaskError(
            f"{where}, field 'split': must be one of {', '.join(_SPLITS)}, "
            f"got {extra_info['split']!r}."
        )
    if extra_info["seed"] < 0:
        raise TaskError(f"{where}, field 'seed': must be >= 0, got {extra_info['seed']}.")
    if not extra_info["task_id"]:
        raise TaskError(f"{where}, field 'task_id': must not be empty, got ''.")
    if ":" in extra_info["env"] and extra_info["env"] not in code_names:
        raise TaskError(
            f"{where}, field 'env': {extra_info['env']!r} loads code, which a task file may not do "
            f"by itself. Set env.env_name to the same name, or register the environment."
        )
    spec = load_spec(extra_info["env"], f"{where}, field 'env'")
    options_where = f"{where}, field 'options_json'"
    try:
        options = json.loads(extra_info["options_json"])
    except ValueError as error:
        raise TaskError(
            f"{options_where}: must be JSON ({error}), got {extra_info['options_json']!r}. "
            f"Use '{{}}' for none."
        ) from error
    return EnvTask(
        env=spec.name,
        task_id=str(extra_info["task_id"]),
        seed=int(extra_info["seed"]),
        split=str(extra_info["split"]),
        options=check_options(spec, options, options_where),
    )


def row_of_task(number: int, task: EnvTask) -> dict[str, Any]:
    """``task`` as row ``number`` of a file, ready for `SCHEMA`."""
    spec = load_spec(task.env, f"task {task.task_id!r}, field 'env'")
    return {
        "prompt": [{"role": "user", "content": spec.description}],
        "data_source": task.env,
        "agent_name": AGENT_NAME,
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {
            "index": number,
            "env": task.env,
            "task_id": task.task_id,
            "seed": task.seed,
            "split": task.split,
            "options_json": json.dumps(dict(task.options), sort_keys=True),
        },
    }


def check_rows(
    rows: Iterable[Mapping[str, Any]], path: Path, code_names: Collection[str] = ()
) -> list[EnvTask]:
    """The tasks of ``rows``; raises TaskError naming file, row, field, rule and remedy."""
    tasks: list[EnvTask] = []
    row_of_id: dict[str, int] = {}
    for number, row in enumerate(rows):
        where = f"{path}, row {number}"
        _check_keys(row, _COLUMNS, where)
        if not isinstance(row["extra_info"], Mapping):
            raise TaskError(
                f"{where}, field 'extra_info': must hold {', '.join(_EXTRA_TYPES)}, "
                f"got {row['extra_info']!r}. Write the file with write_tasks."
            )
        task = task_from_extra_info(
            row["extra_info"], f"{where}, extra_info", code_names=code_names
        )
        for name, expected in (("data_source", task.env), ("agent_name", AGENT_NAME)):
            if row[name] != expected:
                raise TaskError(
                    f"{where}, field {name!r}: must be {expected!r}, got {row[name]!r}. "
                    f"Write the file with write_tasks."
                )
        if task.task_id in row_of_id:
            raise TaskError(
                f"{where}, field 'task_id': must be unique, but {task.task_id!r} is also in row "
                f"{row_of_id[task.task_id]}. Remove one of them."
            )
        row_of_id[task.task_id] = number
        tasks.append(task)
    return tasks


def _check_keys(mapping: Mapping[str, Any], expected: Sequence[str], where: str) -> None:
    for key in mapping:
        if key not in expected:
            raise TaskError(
                f"{where}, field {key!r}: unknown field; a task has {', '.join(expected)}. "
                f"Remove it."
            )
    for key in expected:
        # A key that other rows have and this one lacks reads back from parquet as null.
        if mapping.get(key) is None:
            raise TaskError(f"{where}, field {key!r}: missing. Add it, or write with write_tasks.")


def _check_type(value: Any, kind: type, where: str) -> None:
    # numbers.Integral, because rows that went through pandas carry numpy integers.
    good = isinstance(value, numbers.Integral if kind is int else kind)
    if not good or isinstance(value, bool):
        name = "an integer" if kind is int else "a text"
        raise TaskError(f"{where}: must be {name}, got {value!r} ({type(value).__name__}).")


def load_spec(env: str, where: str) -> EnvSpec:
    """`envs.registry.load_env`, with ``where`` in front of what it raises, as TaskError."""
    try:
        return load_env(env)
    except (EnvNotFoundError, EnvLoadError) as error:
        raise TaskError(f"{where}: {error}") from error


def check_options(spec: EnvSpec, options: Any, where: str) -> dict[str, Any]:
    """``options`` as a dict; raises TaskError when the environment refuses them."""
    if not isinstance(options, Mapping):
        raise TaskError(
            f"{where}: must be an object of options, got {options!r}. Use '{{}}' for none."
        )
    try:
        spec.validate_options(options)
        json.dumps(dict(options), allow_nan=False)
    except (ValueError, TypeError) as error:
        raise TaskError(f"{where}: {error}") from error
    return dict(options)
