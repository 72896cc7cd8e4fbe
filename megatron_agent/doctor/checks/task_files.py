"""Task files that the user brings: splits, and what must not be in two of them.

That they can be read, row by row, is a rule of the configuration (``data.train_files``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from megatron_agent.config.rules.tasks import FILE_KEYS
from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import DoesNotApply, Finding, error, warning
from megatron_agent.doctor.registry import check
from megatron_agent.errors import TaskError
from megatron_agent.tasks import EnvTask, read_tasks

Start = tuple[str, int, str]
"""What decides how an episode starts: environment, seed, options."""


@check("task_files", "training and held-out tasks are apart, and each is in its own file")
def check_task_files(case: RunCase) -> Iterator[Finding]:
    """Splits of each file, then what the files share."""
    files = {key: tasks for key in FILE_KEYS if (tasks := _read(case, key)) is not None}
    if not files:
        raise DoesNotApply("tasks are generated at the start")
    for key, tasks in files.items():
        split = FILE_KEYS[key]
        strays = [task for task in tasks if task.split != split]
        if strays:
            problem = (
                f"must hold tasks of split {split!r}, got {len(strays)} of {len(tasks)} of "
                f"{strays[0].split!r} (the first: {strays[0].task_id})"
            )
            yield error(key, problem, "Remove them, or swap the two files.")
    if len(files) == len(FILE_KEYS):
        yield from _overlap(*files.values())


def _overlap(train: list[EnvTask], held_out: list[EnvTask]) -> Iterator[Finding]:
    trained = {_start(task) for task in train}
    shared = [task for task in held_out if _start(task) in trained]
    if shared:
        problem = (
            f"must not be trained on, but {len(shared)} of {len(held_out)} tasks start like one of "
            f"data.train_files (the first: {shared[0].task_id})"
        )
        yield error("data.val_files", problem, "Make both anew with 'megatron-agent tasks'.")
    repeated = Counter(_start(task) for task in held_out)
    num_extra = len(held_out) - len(repeated)
    if num_extra:
        problem = f"should hold each task once, but {num_extra} of {len(held_out)} are repeated"
        yield warning("data.val_files", problem, "Remove the copies: they count double.")
    unseen = {task.env for task in held_out} - {task.env for task in train}
    if unseen:
        names = ", ".join(sorted(unseen))
        problem = f"asks for environments that data.train_files does not have: {names}"
        yield warning("data.val_files", problem, "Go on if that is meant.")


def _read(case: RunCase, key: str) -> list[EnvTask] | None:
    path = case.values.text(key)
    if path is None or not Path(path).expanduser().is_file():
        return None
    try:
        return read_tasks(
            Path(path).expanduser(), code_names=[case.values.text("env.env_name") or ""]
        )
    except TaskError:
        return None  # a finding of the configuration


def _start(task: EnvTask) -> Start:
    return task.env, task.seed, json.dumps(dict(task.options), sort_keys=True)
