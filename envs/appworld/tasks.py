"""Where AppWorld is installed and its data lie, and the official lists of tasks.

AppWorld pins packages that the training stack has in newer versions (pydantic 1, an old httpx), so
it lives in an environment of its own. Nothing here imports it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.base import TaskStart
from envs.data import EnvDataError, find_data

NAME = "appworld"
PYTHON_VARIABLE = "APPWORLD_PYTHON"
ROOT_VARIABLE = "APPWORLD_ROOT"
DATASETS: Mapping[str, str] = {
    "train": "train",
    "eval": "dev",
    "test_normal": "test_normal",
    "test_challenge": "test_challenge",
}
"""Our split to AppWorld's data set."""
_COMMAND = (
    "python -m venv appworld && appworld/bin/pip install appworld==0.1.3.post1 && "
    "appworld/bin/appworld install && appworld/bin/appworld download data"
)


def data_root(options: Mapping[str, Any], split: str) -> Path:
    """AppWorld's root, the folder that holds ``data``.

    Raises:
        EnvDataError: no place holds the split.
    """
    need = f"data/datasets/{DATASETS[split]}.txt"
    given, variables = options["data_dir"], (ROOT_VARIABLE,)
    return find_data(NAME, given, needs=(need,), command=_COMMAND, variables=variables)


def find_python(options: Mapping[str, Any]) -> str:
    """The Python that has AppWorld installed: option ``python``, else ``$APPWORLD_PYTHON``.

    Raises:
        EnvDataError: it is not named, or no program.
    """
    named = options["python"] or os.environ.get(PYTHON_VARIABLE, "")
    program = shutil.which(os.path.expanduser(named)) if named else None
    if program is None:
        raise EnvDataError(
            f"environment {NAME!r} must know a Python that has AppWorld installed, got {named!r}. "
            f"Get one with: {_COMMAND}; then name appworld/bin/python by env.options.python or "
            f"{PYTHON_VARIABLE}."
        )
    return program


def check_data(options: Mapping[str, Any]) -> None:
    """Raise `envs.data.EnvDataError` unless Python and data are there."""
    find_python(options)
    data_root(options, options["split"])


def task_ids(options: Mapping[str, Any], split: str) -> list[str]:
    """Ids of a split's tasks, in the order of AppWorld's file.

    Raises:
        ValueError: an unknown split.
        EnvDataError: the data are not there.
    """
    if split not in DATASETS:
        raise ValueError(f"{NAME} has the splits {', '.join(DATASETS)}, got {split!r}.")
    path = data_root(options, split) / "data" / "datasets" / f"{DATASETS[split]}.txt"
    lines = path.read_text(encoding="utf-8").split()
    if not lines:
        raise EnvDataError(f"{path}: must name at least one task, got none. Download it again.")
    return [line.partition(":")[0] for line in lines]  # a tag may follow the id


def task_list(split: str, options: Mapping[str, Any]) -> list[TaskStart]:
    """The official tasks of a split; raises as `task_ids` does."""
    return [
        TaskStart(name=task_id, options={"split": split, "task_id": task_id})
        for task_id in task_ids(options, split)
    ]
