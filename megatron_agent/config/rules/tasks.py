"""Rules of the task lists."""

from __future__ import annotations

from pathlib import Path

from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues
from megatron_agent.errors import TaskError

FILE_KEYS: dict[str, str] = {"data.train_files": "train", "data.val_files": "eval"}


def generated_file(values: ConfigValues, key: str) -> Path | None:
    """Where the task list behind ``key`` is generated; None when the user brings another file."""
    run_dir = values.text("run.dir")
    if run_dir is None:
        return None
    path = Path(run_dir) / "tasks" / f"{FILE_KEYS[key]}.parquet"
    return path if values.text(key) == str(path) else None


def check_tasks(values: ConfigValues, findings: Findings) -> None:
    """The task files can be read, or generated, and hold enough tasks for a batch."""
    num_groups = values.integer("data.train_batch_size")
    for key in FILE_KEYS:
        num_tasks = _count_tasks(values, key, findings)
        if key != "data.train_files" or num_tasks is None or num_groups is None:
            continue
        if num_tasks < num_groups:
            findings.problem(
                "data.train_batch_size",
                f"must be <= the number of training tasks ({num_tasks})",
                num_groups,
                "Make more tasks (env.tasks.num_train) or use a smaller batch.",
            )
        elif num_groups >= 1:
            _check_epochs(values, num_tasks // num_groups, findings)


def _check_epochs(values: ConfigValues, steps_per_epoch: int, findings: Findings) -> None:
    """The epochs hold all steps; verl would end without the last checkpoint and evaluation."""
    num_epochs = values.integer("trainer.total_epochs")
    num_steps = values.integer("trainer.total_training_steps")
    if num_epochs is None or num_steps is None or num_epochs * steps_per_epoch >= num_steps:
        return
    findings.problem(
        "trainer.total_epochs",
        f"times the steps of an epoch ({steps_per_epoch}) must be >= "
        f"trainer.total_training_steps ({num_steps})",
        num_epochs,
        "Leave it large, and say how long the run is with trainer.total_training_steps.",
    )


def _count_tasks(values: ConfigValues, key: str, findings: Findings) -> int | None:
    """Number of tasks behind ``key``; None when it is not known or was reported."""
    path = values.text(key)
    if path is None:
        remedy = "Give one parquet file, or leave the key alone to generate tasks."
        findings.problem(key, "must be the path of one file", values.get(key), remedy)
        return None
    file = Path(path).expanduser()
    if not file.is_file():
        if generated_file(values, key) is not None:
            return values.integer(f"env.tasks.num_{FILE_KEYS[key]}")
        remedy = "Make one with 'megatron-agent tasks', or leave the key alone to generate it."
        findings.problem(key, "must be an existing file", path, remedy)
        return None
    # Reading parquet imports pyarrow; a run without a dataset of its own starts without it.
    from megatron_agent.tasks import read_tasks

    try:
        return len(read_tasks(file, code_names=[values.text("env.env_name") or ""]))
    except TaskError as error:
        findings.problem(
            key, f"must hold tasks ({error})", path, "Correct the file or make a new one."
        )
        return None
