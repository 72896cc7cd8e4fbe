"""Task files and the first episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from megatron_agent.doctor.findings import Finding, Severity
from megatron_agent.tasks import EnvTask, read_tasks, write_tasks

pytestmark = pytest.mark.unit

Find = Callable[..., list[Finding]]
Folder = Any  # of conftest.py


def test_generated_tasks_are_not_looked_at(is_left_out: Callable[..., str]) -> None:
    reason = is_left_out("task_files", "data.train_files=/nowhere", "data.val_files=/nowhere")
    assert reason == "tasks are generated at the start"


def test_a_file_that_cannot_be_read_is_left_to_the_configuration(
    folder: Folder, findings_of: Find
) -> None:
    (folder.path / "train.parquet").write_text("no parquet")
    assert findings_of("task_files") == []
    assert any(f.subject == "data.train_files" for f in findings_of("configuration"))


def test_repeated_held_out_tasks_and_other_environments_are_warnings(
    folder: Folder, findings_of: Find
) -> None:
    path = folder.path / "eval.parquet"
    first, *others = read_tasks(path)
    copy = EnvTask(
        env=first.env, task_id="copy", seed=first.seed, split="eval", options=first.options
    )
    taxi = EnvTask(env="taxi", task_id="taxi-1", seed=1, split="eval")
    write_tasks(path, [first, *others, copy, taxi])
    findings = findings_of("task_files")
    assert [finding.severity for finding in findings] == [Severity.WARNING] * 2
    assert "1 of 6 are repeated" in findings[0].problem
    assert findings[1].problem.endswith("does not have: taxi")


def test_an_environment_that_cannot_be_reset_is_an_error(findings_of: Find) -> None:
    (finding,) = findings_of("environment", "env.start_timeout_s=0.000001")
    assert finding.severity is Severity.ERROR
    assert "must open and reset (" in finding.problem
    assert "megatron-agent env check frozenlake" in finding.remedy


def test_a_prompt_that_cannot_be_made_is_an_error(
    findings_of: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_context: object) -> str:
        raise KeyError("board")

    monkeypatch.setattr(
        "megatron_agent.doctor.checks.environment.with_prompt_file",
        lambda spec, _path: type("Spec", (), {"build_prompt": staticmethod(broken)}),
    )
    (finding,) = findings_of("environment")
    assert "must make a prompt (KeyError: 'board')" in finding.problem


def test_faults_elsewhere_do_not_keep_the_environment_from_being_tried(findings_of: Find) -> None:
    assert findings_of("environment", "algorithm.gamma=-1") == []


def test_a_section_env_with_faults_does(is_left_out: Callable[..., str]) -> None:
    assert is_left_out("environment", "env.max_steps=0") == "section env has errors"


def test_the_first_prompt_is_counted_with_the_options_of_the_template(
    folder: Folder, findings_of: Find
) -> None:
    folder.set_template("{{ 'Move right. ' * (preamble or 0) }}{{ messages[0].content }}")
    assert findings_of("environment") == []
    option = "+data.apply_chat_template_kwargs.preamble=1000"
    (finding,) = findings_of("environment", option)
    assert finding.subject == "data.max_prompt_length"
