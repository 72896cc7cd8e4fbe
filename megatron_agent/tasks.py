"""Hop 1: a dataset row is a task.

A task says which environment, from which seed, with which options; nothing else decides where an
episode starts. Task files are parquet in the row format of `megatron_agent.task_rows`, and every
row is checked on reading, before anything heavy starts.

Example::

    tasks = generate_tasks("frozenlake", num_train=1000, num_eval=200, options={"size": 4})
    write_tasks("data/train.parquet", [task for task in tasks if task.split == "train"])
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from envs.registry import EnvSpec
from megatron_agent.atomic_file import atomic_file
from megatron_agent.errors import TaskError
from megatron_agent.task_rows import (
    SCHEMA,
    EnvTask,
    check_options,
    check_rows,
    load_spec,
    row_of_task,
    task_from_extra_info,
)
from megatron_agent.types import AGENT_NAME

__all__ = [
    "AGENT_NAME",
    "EVAL_SEEDS",
    "TRAIN_SEEDS",
    "EnvTask",
    "draw_tasks",
    "generate_tasks",
    "list_tasks",
    "read_tasks",
    "task_from_extra_info",
    "write_tasks",
]

TRAIN_SEEDS = range(0, 2**30)
EVAL_SEEDS = range(2**30, 2**31)
"""The two ranges do not meet, so no seed is ever in both splits, whatever was generated when."""

EVAL_SHARE = 0.25
"""Share of different starts that belong to evaluation, where starts can be told apart."""


def generate_tasks(
    env: str,
    num_train: int,
    num_eval: int,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    *,
    names: Mapping[str, str] | None = None,
) -> list[EnvTask]:
    """Draw ``num_train`` training tasks followed by ``num_eval`` evaluation tasks; the same
    arguments give the same tasks.

    The splits share no seed (the ranges are disjoint) and, where the environment can tell (its
    ``start_key``), no start in disguise, such as one map under two seeds: a hash of the start says
    which split it belongs to, whatever else is drawn. So both splits have the environment's own
    distribution, and lists generated at different times never overlap. Within one split a start
    may come twice.

    An environment with a fixed list of tasks (its ``task_list``) gives those, each at most once, in
    an order that ``seed`` decides: a larger evaluation panel holds every smaller one.

    Args:
        env: the environment's name.
        num_train: number of training tasks.
        num_eval: number of evaluation tasks.
        seed: decides which.
        options: of the environment.
        names: what the caller's user knows the arguments by, for messages:
            ``{"num_train": "--num-train"}``.

    Raises:
        TaskError: unknown environment, an option or a number that cannot work, data that are not
            there, or too few different starts.

    Example:
        >>> [task.task_id for task in generate_tasks("frozenlake", 1, 1, seed=3)]
        ['frozenlake-train-713918400', 'frozenlake-eval-1951346435']
    """
    fields = ("env", "num_train", "num_eval", "seed", "options")
    where = {field: f"generate_tasks, field {field!r}" for field in fields} | dict(names or {})
    spec = load_spec(env, where["env"])
    options = check_options(spec, dict(options or {}), where["options"])
    for name, value in (("num_train", num_train), ("num_eval", num_eval), ("seed", seed)):
        if not isinstance(value, int) or value < 0:
            raise TaskError(f"{where[name]}: must be an integer >= 0, got {value!r}.")

    if spec.task_list is not None:
        return [
            task
            for split, num in (("train", num_train), ("eval", num_eval))
            for task in _listed_tasks(spec, split, num, seed, options, where[f"num_{split}"])
        ]

    def belongs(start_seed: int, split: str) -> bool:
        if spec.start_key is None:
            return True
        return split == _split_of(spec.start_key(start_seed, options))

    chosen = {
        split: _draw_seeds(
            seeds, num, f"{env}/{split}/{seed}", functools.partial(belongs, split=split)
        )
        for split, seeds, num in (
            ("train", TRAIN_SEEDS, num_train),
            ("eval", EVAL_SEEDS, num_eval),
        )
    }
    for split, num in (("train", num_train), ("eval", num_eval)):
        if len(chosen[split]) < num:
            raise TaskError(
                f"{where[f'num_{split}']}: environment {env!r} with options {options!r} has too "
                f"few different starts; found {len(chosen[split])} of {num} {split} tasks. Ask for "
                f"fewer, or use options with more variety."
            )
    return [
        EnvTask(env=env, task_id=f"{env}-{split}-{drawn}", seed=drawn, split=split, options=options)
        for split in ("train", "eval")
        for drawn in chosen[split]
    ]


def list_tasks(env: str, split: str, options: Mapping[str, Any] | None = None) -> list[EnvTask]:
    """Every task of a split of an environment with a fixed list, in the environment's order; with
    options that name one task (``{"game": ...}``), that one alone.

    Raises:
        TaskError: unknown environment, split or named task, an environment without a list, or data
            that are not there.
    """
    spec = load_spec(env, "list_tasks, field 'env'")
    options = check_options(spec, dict(options or {}), "list_tasks, field 'options'")
    if spec.task_list is None:
        raise TaskError(
            f"list_tasks, field 'env': must be an environment with a fixed list of tasks, got "
            f"{env!r}. Draw seeds with generate_tasks."
        )
    try:
        starts = spec.listed_starts(split, options)
    except ValueError as error:
        raise TaskError(f"the task list of environment {env!r}: {error}") from error
    return [
        EnvTask(
            env=env,
            task_id=f"{env}-{split}-{start.name}",
            seed=start.seed,
            split=split,
            options=start.options,
        )
        for start in starts
    ]


def draw_tasks(
    env: str,
    split: str,
    num: int,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> list[EnvTask]:
    """``num`` tasks of one split, the same that `generate_tasks` draws; of a fixed list no more
    than there are. A fixed list may have other splits than ``train`` and ``eval``.

    Raises:
        TaskError: as for `generate_tasks`, or an unknown split.
    """
    spec = load_spec(env, "draw_tasks, field 'env'")
    if split not in spec.splits:
        raise TaskError(
            f"draw_tasks, field 'split': must be one of {', '.join(spec.splits)} for environment "
            f"{env!r}, got {split!r}."
        )
    if spec.task_list is None:
        counts: dict[str, Any] = {"num_train": 0, "num_eval": 0, f"num_{split}": num}
        return generate_tasks(env, **counts, seed=seed, options=options)
    tasks = list_tasks(env, split, options)
    random.Random(f"{env}/{split}/{seed}").shuffle(tasks)
    return tasks[:num]


def write_tasks(path: str | os.PathLike[str], tasks: Sequence[EnvTask]) -> None:
    """Write a task file; it appears under its name only when complete.

    Raises:
        TaskError: no tasks, a task that `read_tasks` would refuse, or a place that cannot be
            written to.
    """
    path = Path(path)
    if not tasks:
        raise TaskError(
            f"{path}: a task file must hold at least one task, got none. Generate some."
        )
    rows = [row_of_task(number, task) for number, task in enumerate(tasks)]
    check_rows(rows, path, code_names={task.env for task in tasks})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, binary=True) as file:
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file)
    except OSError as error:
        raise TaskError(
            f"{path}: must be a file that can be written in a folder that can be made, got "
            f"{error}. Choose another folder, or mend this one."
        ) from error


def read_tasks(path: str | os.PathLike[str], *, code_names: Collection[str] = ()) -> list[EnvTask]:
    """Read and check a task file, in the order of its rows.

    Args:
        path: the file.
        code_names: environment names with a colon that may be followed: those that the
            configuration or the command line names.

    Raises:
        TaskError: no such file, not parquet, or a row with an unknown or missing field, a wrong
            type, an unknown environment, options that cannot work, or a ``task_id`` seen before.
            The message names file, row, field, rule and remedy.
    """
    path = Path(path)
    if not path.is_file():
        raise TaskError(
            f"{path}: no such task file. Make one with `megatron-agent tasks`, or correct the path."
        )
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise TaskError(f"{path}: must be a parquet file ({error}). Write it again.") from error
    rows = table.to_pylist()
    if not rows:
        raise TaskError(
            f"{path}: a task file must hold at least one task, got none. Generate some."
        )
    return check_rows(rows, path, code_names)


def _listed_tasks(
    spec: EnvSpec, split: str, num: int, seed: int, options: Mapping[str, Any], where: str
) -> list[EnvTask]:
    tasks = draw_tasks(spec.name, split, num, seed, options) if num else []
    if len(tasks) < num:
        raise TaskError(
            f"{where}: must be <= {len(tasks)}, the number of {split} tasks of environment "
            f"{spec.name!r} with options {dict(options)!r}, got {num}. Ask for fewer."
        )
    return tasks


def _split_of(start_key: str) -> str:
    """Which split a start belongs to; the same everywhere and for ever."""
    digest = hashlib.blake2b(start_key.encode(), digest_size=8).digest()
    return "eval" if int.from_bytes(digest, "big") < EVAL_SHARE * 2**64 else "train"


def _draw_seeds(seeds: range, num: int, rng_seed: str, accept: Callable[[int], bool]) -> list[int]:
    """Up to ``num`` different accepted seeds; gives up after a bounded number of tries."""
    rng = random.Random(rng_seed)
    drawn: dict[int, None] = {}
    for _ in range(100 * num + 1000):
        if len(drawn) == num:
            break
        candidate = rng.choice(seeds)
        if candidate not in drawn and accept(candidate):
            drawn[candidate] = None
    return list(drawn)
