"""One line per step, in a file that survives a kill and a resume."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from megatron_agent.backend.progress import ProgressBackend, progress_line, written_lines

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def written(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path: Path) -> list[int]:
    return [record["step"] for record in written(path)]


def log_steps(path: Path, *numbers: int, resumed_step: int = 0) -> None:
    backend = ProgressBackend(path, resumed_step=resumed_step, num_steps=9)
    for step in numbers:
        backend.log({"train/rows": step * 10}, step)
    backend.finish()


def test_one_line_is_said_per_step(path, caplog):
    with caplog.at_level(logging.INFO, logger="megatron_agent.progress"):
        log_steps(path, 1, 2)
    assert caplog.messages == ["step 1/9 | rows 10", "step 2/9 | rows 20"]


def test_one_record_is_appended_per_step_and_is_there_at_once(path):
    backend = ProgressBackend(path, resumed_step=0, num_steps=9)
    backend.log({"a": 1.5}, 1)
    record = written(path)[0]
    assert record.pop("time") > 1e9
    assert record == {"step": 1, "a": 1.5}
    backend.log({"a": 2.5}, 2)
    assert steps(path) == [1, 2]
    backend.finish()


def test_numbers_of_numpy_and_what_json_lacks_are_written_as_plain_values(path):
    backend = ProgressBackend(path, resumed_step=0, num_steps=9)
    metrics = {
        "float32": np.float32(0.5),
        "int64": np.int64(3),
        "scalar_array": np.array(2.0),
        "nan": float("nan"),
        "numpy_inf": np.float64("inf"),
        "text": "x",
        "flag": True,
        "nothing": None,
        "other": (1, 2),
    }
    backend.log(metrics, np.int64(1).item())
    backend.finish()
    record = written(path)[0]
    assert {name: record[name] for name in metrics} == {
        "float32": 0.5,
        "int64": 3,
        "scalar_array": 2.0,
        "nan": None,
        "numpy_inf": None,
        "text": "x",
        "flag": True,
        "nothing": None,
        "other": "(1, 2)",
    }


def test_a_resumed_run_drops_the_lines_of_steps_it_takes_again(path):
    log_steps(path, 1, 2, 3, 4)
    log_steps(path, 3, 4, 5, resumed_step=2)
    assert steps(path) == [1, 2, 3, 4, 5]
    assert not path.with_suffix(".partial").exists()


def test_a_fresh_run_in_an_old_folder_starts_over(path):
    log_steps(path, 1, 2, 3)
    log_steps(path, 1)
    assert steps(path) == [1]


@pytest.mark.parametrize("cut", ['{"a": 1, "st', '{"step"', "{}", "\x00\x00"])
def test_a_last_line_that_a_kill_cut_off_is_dropped(path, cut):
    log_steps(path, 1, 2)
    with path.open("a") as file:
        file.write(cut)
    log_steps(path, 3, resumed_step=2)
    assert steps(path) == [1, 2, 3]


def test_the_line_names_what_there_is_in_a_fixed_order():
    metrics = {
        "timing_s/step": 9.96,
        "timing_s/update_actor": 3.0,
        "timing_s/gen": 5.0,
        "episode/return/mean": 0.25,
        "episode/success/mean": 0.5,
        "episode/length/mean": 4.25,
        "step/action_valid/mean": 1.0,
        "train/rows": 34,
        "train/optimizer_steps": 2,
        "episode/failed/mean": 0.125,
        "actor/pg_loss": 1.0,
    }
    assert progress_line(metrics, step=3, num_steps=60) == (
        "step 3/60 | return 0.250 | success 0.50 | length 4.2 | valid 1.00 | rows 34 | updates 2"
        " | failed 0.12 | gen 5.0s actor 3.0s | total 10.0s"
    )


def test_no_failures_are_not_worth_a_word():
    assert progress_line({"episode/failed/mean": 0.0}, step=1, num_steps=2) == "step 1/2"


def test_a_validation_says_its_success_rate_only():
    metrics = {
        "val-core/frozenlake/success/mean@1": 0.75,
        "val-aux/frozenlake/success/std@1": 0.1,
        "val-aux/frozenlake/num_turns/mean": 2.0,
    }
    assert progress_line(metrics, step=0, num_steps=2) == "step 0/2 | eval success 0.750"


def test_a_value_that_is_not_a_number_does_not_stop_the_run(path, caplog):
    backend = ProgressBackend(path, resumed_step=0, num_steps=2)
    with caplog.at_level(logging.INFO, logger="megatron_agent.progress"):
        backend.log({"episode/return/mean": float("nan"), "train/rows": 2}, 1)
    backend.finish()
    assert steps(path) == [1]
    assert "rows 2" in caplog.messages[0]


def test_the_file_lies_in_the_folder_of_the_run(tmp_path):
    config = SimpleNamespace(run=SimpleNamespace(dir=str(tmp_path / "mine")))
    backend = ProgressBackend.from_config(config, resumed_step=0, num_steps=2)
    backend.log({}, 1)
    backend.finish(exit_code=0)
    assert steps(tmp_path / "mine" / "metrics.jsonl") == [1]


def test_a_run_that_begins_again_has_one_evaluation_of_its_start(path):
    log_steps(path, 0, 1)
    log_steps(path, 0, 1)
    assert steps(path) == [0, 1]


def test_lines_that_are_no_steps_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert list(written_lines(path)) == []
    path.write_text(
        '{"step": 2, "a": 1}\n[]\n{"step": null}\n\n{"time": 1}\n{"step": 2, "b": 4}\n{"step"'
    )
    assert [record for _, record in written_lines(path)] == [
        {"step": 2, "a": 1},
        {"step": 2, "b": 4},
    ]
