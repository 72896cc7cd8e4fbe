"""Task files: generation, disjoint splits, and rows that are wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from envs.frozenlake.env import start_key
from megatron_agent.errors import TaskError
from megatron_agent.tasks import (
    AGENT_NAME,
    EVAL_SEEDS,
    TRAIN_SEEDS,
    EnvTask,
    generate_tasks,
    read_tasks,
    task_from_extra_info,
    write_tasks,
)

pytestmark = pytest.mark.unit

EXTRA_INFO = {
    "index": 0,
    "env": "frozenlake",
    "task_id": "a",
    "seed": 3,
    "split": "train",
    "options_json": "{}",
}


def split_of(tasks: list[EnvTask], split: str) -> list[EnvTask]:
    return [task for task in tasks if task.split == split]


def good_row(**extra_info: Any) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": "Cross."}],
        "data_source": "frozenlake",
        "agent_name": AGENT_NAME,
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": EXTRA_INFO | extra_info,
    }


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    columns = dict.fromkeys(key for row in rows for key in row)  # parquet rows share their columns
    full_rows = [{key: row.get(key) for key in columns} for row in rows]
    pq.write_table(pa.Table.from_pylist(full_rows), path)
    return path


def test_the_seed_ranges_do_not_meet():
    assert not range(
        max(TRAIN_SEEDS.start, EVAL_SEEDS.start), min(TRAIN_SEEDS.stop, EVAL_SEEDS.stop)
    )


@pytest.mark.parametrize("size", [4, 8])
def test_no_seed_and_no_map_is_in_both_splits(size: int):
    tasks = generate_tasks("frozenlake", 300, 60, seed=1, options={"size": size})
    train, evaluation = split_of(tasks, "train"), split_of(tasks, "eval")
    assert (len(train), len(evaluation)) == (300, 60)
    assert all(task.seed in TRAIN_SEEDS for task in train)
    assert all(task.seed in EVAL_SEEDS for task in evaluation)
    maps = [{start_key(task.seed, task.options) for task in part} for part in (train, evaluation)]
    assert not maps[0] & maps[1]
    assert len({task.task_id for task in tasks}) == 360


def test_generation_depends_on_its_seed_alone():
    first = generate_tasks("frozenlake", 5, 5, seed=1)
    assert first == generate_tasks("frozenlake", 5, 5, seed=1)
    assert not {task.seed for task in first} & {
        task.seed for task in generate_tasks("frozenlake", 5, 5, seed=2)
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "frozenlak"}, r"field 'env': no environment is named 'frozenlak'\. Did you mean"),
        ({"num_train": -1}, r"field 'num_train': must be an integer >= 0, got -1"),
        ({"num_eval": 1.5}, r"field 'num_eval': must be an integer >= 0, got 1\.5"),
        ({"seed": "x"}, r"field 'seed': must be an integer >= 0, got 'x'"),
        ({"options": {"size": 99}}, r"field 'options': option 'size' .* got 99"),
        (
            {"options": {"p": 1.0}},
            r"too few different starts; found 0 of 2 eval tasks. Ask for fewer",
        ),
    ],
)
def test_what_cannot_be_generated_says_why(arguments: dict[str, Any], message: str):
    with pytest.raises(TaskError, match=message):
        generate_tasks(**{"env": "frozenlake", "num_train": 2, "num_eval": 2} | arguments)


def test_a_file_reads_back_as_it_was_written(tmp_path: Path):
    tasks = generate_tasks("frozenlake", 3, 2, options={"size": 5, "is_slippery": True})
    write_tasks(tmp_path / "new" / "tasks.parquet", tasks)
    assert read_tasks(tmp_path / "new" / "tasks.parquet") == tasks
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tasks.parquet"]


def test_a_row_has_what_a_trainer_of_chat_models_reads(tmp_path: Path):
    write_tasks(tmp_path / "tasks.parquet", generate_tasks("frozenlake", 1, 0))
    (row,) = pq.read_table(tmp_path / "tasks.parquet").to_pylist()
    assert row["prompt"][0]["role"] == "user"
    assert row["prompt"][0]["content"]
    assert (row["data_source"], row["agent_name"]) == ("frozenlake", "gym_steps")
    assert row["extra_info"]["index"] == 0


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "tasks.parquet"
    tasks = generate_tasks("frozenlake", 1, 0)
    write_tasks(path, tasks)

    def full_disk(table: pa.Table, sink: Any) -> None:
        sink.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(TaskError, match=r"tasks\.parquet: must be a file .* got no space left"):
        write_tasks(path, generate_tasks("frozenlake", 2, 0))
    assert read_tasks(path) == tasks
    assert [entry.name for entry in tmp_path.iterdir()] == ["tasks.parquet"]


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    tasks = generate_tasks("frozenlake", 1, 0)
    for path in (tmp_path / "file" / "tasks.parquet", tmp_path / "folder"):
        with pytest.raises(TaskError) as caught:
            write_tasks(path, tasks)
        assert str(caught.value).startswith(f"{path}: must be a file that can be written in a")
        assert str(caught.value).endswith("Choose another folder, or mend this one.")
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["file", "folder"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_train": -1}, r"^--num-train: must be an integer >= 0"),
        ({"env": "frozenlak"}, r"^generate_tasks, field 'env': no environment"),
        ({"options": {"p": 1.0}}, r"^generate_tasks, field 'num_eval': environment 'frozenlake'"),
    ],
)
def test_a_caller_may_say_what_its_user_calls_the_arguments(
    arguments: dict[str, Any], message: str
):
    full = {"env": "frozenlake", "num_train": 2, "num_eval": 2} | arguments
    with pytest.raises(TaskError, match=message):
        generate_tasks(**full, names={"num_train": "--num-train"})


def test_tasks_are_plain_data():
    (task,) = generate_tasks("frozenlake", 1, 0)
    assert EnvTask(**json.loads(json.dumps(dataclasses.asdict(task)))) == task


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    row = good_row(task_id="b")
    change(row)
    return row


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(lambda row: row.update(colour="red")), r"field 'colour': unknown field; a task"),
        (changed(lambda row: row.pop("ability")), r"row 1, field 'ability': missing"),
        (changed(lambda row: row.pop("extra_info")), r"row 1, field 'extra_info': missing"),
        (good_row(task_id="b", sede=1), r"field 'sede': unknown field; .*Remove it"),
        (good_row(task_id="b", seed=None), r"row 1, extra_info, field 'seed': missing"),
        (good_row(task_id="a"), r"row 1, field 'task_id': must be unique, .*'a' is also in row 0"),
        (good_row(task_id=""), r"row 1, extra_info, field 'task_id': must not be empty"),
        (good_row(task_id="b", env="frozenlak"), r"row 1, .*'env'.*Did you mean 'frozenlake'"),
        (good_row(task_id="b", split="test"), r"field 'split': must be one of train, eval, got 't"),
        (good_row(task_id="b", seed=-1), r"row 1, extra_info, field 'seed': must be >= 0, got -1"),
        (good_row(task_id="b", options_json="{"), r"field 'options_json': must be JSON"),
        (good_row(task_id="b", options_json="[]"), r"must be an object of options, got \[\]"),
        (good_row(task_id="b", options_json='{"size": 1}'), r"'options_json': option 'size'"),
        (changed(lambda row: row.update(data_source="x")), r"'data_source': must be 'frozenlake'"),
        (changed(lambda row: row.update(agent_name="x")), r"'agent_name': must be 'gym_steps'"),
    ],
)
def test_a_wrong_row_names_file_row_field_and_rule(
    row: dict[str, Any], message: str, tmp_path: Path
):
    path = write_rows(tmp_path / "tasks.parquet", good_row(), row)
    with pytest.raises(TaskError, match=message) as caught:
        read_tasks(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seed", "3", r"extra_info, field 'seed': must be an integer, got '3' \(str\)"),
        ("seed", 3.0, r"must be an integer, got 3\.0 \(float\)"),
        ("seed", True, r"must be an integer, got True \(bool\)"),
        ("task_id", 3, r"extra_info, field 'task_id': must be a text, got 3 \(int\)"),
        ("options_json", {}, r"field 'options_json': must be a text, got \{\} \(dict\)"),
    ],
)
def test_a_wrong_type_names_field_value_and_type(field: str, value: Any, message: str):
    with pytest.raises(TaskError, match=message):
        task_from_extra_info(EXTRA_INFO | {field: value})


def test_numpy_integers_are_integers():
    task = task_from_extra_info(EXTRA_INFO | {"seed": np.int64(3), "index": np.int32(0)})
    assert type(task.seed) is int


def test_files_that_are_not_task_files_say_so(tmp_path: Path):
    with pytest.raises(TaskError, match=r"none\.parquet: no such task file\. Make one with"):
        read_tasks(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(TaskError, match=r"text\.parquet: must be a parquet file"):
        read_tasks(tmp_path / "text.parquet")
    pq.write_table(pa.table({"prompt": []}), tmp_path / "empty.parquet")
    with pytest.raises(TaskError, match=r"empty\.parquet: a task file must hold at least one task"):
        read_tasks(tmp_path / "empty.parquet")
    with pytest.raises(TaskError, match="must hold at least one task"):
        write_tasks(tmp_path / "tasks.parquet", [])


def test_tasks_that_could_not_be_read_are_not_written(tmp_path: Path):
    (task,) = generate_tasks("frozenlake", 1, 0)
    with pytest.raises(TaskError, match="'task_id': must be unique"):
        write_tasks(tmp_path / "tasks.parquet", [task, task])
    with pytest.raises(TaskError, match="'env': no environment is named 'nowhere'"):
        write_tasks(tmp_path / "tasks.parquet", [dataclasses.replace(task, env="nowhere")])
    assert not list(tmp_path.iterdir())


def test_an_extra_info_that_is_no_mapping_is_an_error(tmp_path: Path):
    path = write_rows(tmp_path / "tasks.parquet", good_row() | {"extra_info": "seed=3"})
    with pytest.raises(TaskError, match=r"row 0, field 'extra_info': must hold index, env"):
        read_tasks(path)
