"""What the ledger proves, on histories short enough to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_agent.backend.run_ledger import check_run
from megatron_agent.cli import main
from megatron_agent.ledger import (
    MAX_OPEN_STEPS,
    Admitted,
    Attempt,
    Checkpoint,
    Event,
    Evicted,
    GroupOutcome,
    Ledger,
    LedgerError,
    SetAside,
    Trained,
    check_ledger,
    read_ledger,
)

pytestmark = pytest.mark.unit


def attempt(number: int, resumed_step: int = 0, *, mode: str = "sync") -> Attempt:
    return Attempt(attempt=number, resumed_step=resumed_step, mode=mode, tasks_per_epoch=4)


def admitted(step: int, **groups: str) -> Admitted:
    return Admitted(step=step, groups=groups)


def trained(step: int, removed: Mapping[str, str] | None = None, **groups: str) -> Trained:
    def outcomes(tasks: Mapping[str, str]) -> tuple[GroupOutcome, ...]:
        return tuple(
            GroupOutcome(group=name, task_id=task, return_mean=0.5, num_success=1, num_failed=0)
            for name, task in tasks.items()
        )

    return Trained(step=step, groups=outcomes(groups), removed=outcomes(removed or {}))


FIRST_STEP: list[Event] = [
    attempt(1),
    admitted(1, a="t0", b="t1"),
    trained(1, a="t0", b="t1"),
    Checkpoint(step=1),
]


def test_an_undisturbed_run_has_no_problem():
    events = [*FIRST_STEP, admitted(2, c="t2", d="t3"), trained(2, c="t2", d="t3")]
    report = check_ledger([*events, admitted(3, e="t3", f="t0")])
    assert report.problems == ()
    assert (report.last_step, report.num_admitted, report.num_trained, report.num_open) == (
        2,
        6,
        4,
        2,
    )
    assert report.text.endswith("no task was lost or trained on twice")


def test_a_step_that_no_checkpoint_holds_is_taken_back_and_taken_again():
    lost = [admitted(2, c="t2", d="t3"), trained(2, c="t2", d="t3")]
    again = [attempt(2, 1), admitted(2, e="t2", f="t3"), trained(2, e="t2", f="t3")]
    report = check_ledger([*FIRST_STEP, *lost, *again])
    assert report.problems == ()
    assert (report.num_attempts, report.num_retaken_steps, report.num_trained) == (2, 1, 4)


def test_a_run_without_a_checkpoint_begins_anew():
    begun = [attempt(1), admitted(1, a="t0", b="t1")]
    report = check_ledger(
        [*begun, attempt(2), admitted(1, c="t0", d="t1"), trained(1, c="t0", d="t1")]
    )
    assert report.problems == ()
    assert report.num_admitted == 2


def test_a_run_that_began_from_another_runs_checkpoint_may_begin_anew_too():
    begun = [attempt(1, 7), admitted(8, a="t0"), trained(8, a="t0")]
    assert check_ledger([*begun, attempt(2, 7), admitted(8, b="t0")]).problems == ()


def test_tasks_of_a_step_that_was_set_aside_come_again_and_are_not_lost():
    aside = [admitted(2, c="t2", d="t3"), SetAside(step=2), Checkpoint(step=1)]
    again = [attempt(2, 1), admitted(2, e="t2", f="t3"), trained(2, e="t2", f="t3")]
    report = check_ledger([*FIRST_STEP, *aside, *again])
    assert report.problems == ()
    assert report.num_open == 0


def test_groups_in_flight_at_a_checkpoint_go_on_under_their_ids():
    flying = [
        attempt(1, mode="colocate_async"),
        admitted(1, a="t0", b="t1"),
        trained(1, a="t0"),
        Checkpoint(step=1),
    ]
    resumed = [attempt(2, 1, mode="colocate_async"), trained(2, b="t1")]
    report = check_ledger([*flying, *resumed])
    assert report.problems == ()
    assert report.num_open == 0


def test_removed_and_evicted_groups_have_come_to_their_end():
    events = [attempt(1), admitted(1, a="t0", b="t1", c="t2"), Evicted(step=1, groups=("c",))]
    report = check_ledger([*events, trained(1, {"b": "t1"}, a="t0")])
    assert report.problems == ()
    assert (report.num_removed, report.num_evicted, report.num_open) == (1, 1, 0)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ([trained(3, c="t2")], "step 3 was trained where step 2 was due"),
        ([trained(1, c="t2")], "step 1 was trained where step 2 was due"),
        ([trained(2, a="t0")], "group a (t0) came to an end 2 times"),
        ([trained(2, x="t9")], "group x was trained on and never admitted"),
        ([admitted(2, a="t2")], "group a (t2) was admitted twice"),
        (
            [admitted(2, c="t2", d="t3"), trained(2, c="t2")],
            "group d (t3) was left behind by step 2",
        ),
        ([admitted(2, c="t0")], "task t0 was admitted 2 times in epoch 1"),
        ([attempt(2, 5)], "attempt 2 goes on from step 5, of which the ledger has no checkpoint"),
        (
            [admitted(2, c="t2"), attempt(2, 1), admitted(2, d="t3")],
            "step 2 began with other tasks when it was taken again: t2, then t3",
        ),
        (
            [admitted(2, c="t2"), trained(2, c="t3")],
            "group c ended as task 't3' and was admitted as 't2'",
        ),
        (
            [admitted(2, c="t2"), trained(2, {"c": ""})],
            "group c ended as task '' and was admitted as 't2'",
        ),
        ([admitted(4, c="t2")], "1 groups were admitted in step 4 where step 2 was due"),
    ],
)
def test_a_broken_history_is_told(more: list[Event], problem: str):
    assert problem in check_ledger([*FIRST_STEP, *more]).problems


def test_events_survive_the_file(tmp_path: Path):
    events = [
        *FIRST_STEP,
        SetAside(step=2),
        Evicted(step=2, groups=("x",)),
        trained(2, {"d": "t3"}, c="t2"),
    ]
    ledger = Ledger(tmp_path)
    for event in events:
        ledger.append(event)
    assert read_ledger(ledger.path) == events


def test_a_line_that_a_kill_cut_short_is_passed_over(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.append(attempt(1))
    with ledger.path.open("a") as file:
        file.write('{"kind": "adm')
    assert read_ledger(ledger.path) == [attempt(1)]
    ledger.append(attempt(2))
    assert read_ledger(ledger.path) == [attempt(1), attempt(2)]


@pytest.mark.parametrize("line", ["{", '{"kind": "other"}', "[1]", '{"kind": "checkpoint"}'])
def test_a_line_in_the_middle_that_is_no_event_is_an_error(tmp_path: Path, line: str):
    ledger = Ledger(tmp_path)
    ledger.append(attempt(1))
    with ledger.path.open("a") as file:
        file.write(line + "\n")
    ledger.append(Checkpoint(step=1))
    with pytest.raises(LedgerError, match=r"line 2 must be an event of the ledger"):
        read_ledger(ledger.path)


@pytest.mark.parametrize(
    ("events", "found"),
    [([], "is empty"), (FIRST_STEP[1:], "begins with 'admitted'")],
)
def test_a_ledger_without_its_first_attempt_proves_nothing(events: list[Event], found: str):
    problem = f"the ledger {found}, where an attempt should be: what came before it is lost"
    assert problem in check_ledger(events).problems


def long_open(num_steps: int) -> list[Event]:
    """Group `lost` is admitted in step 1 and still open after so many steps."""
    events: list[Event] = [attempt(1, mode="separate_async"), admitted(1, lost="t0")]
    for step in range(1, num_steps + 1):
        group = {f"g{step}": f"t{step % 3 + 1}"}
        events += [admitted(step, **group), trained(step, **group)]
    return [replace(events[0], tasks_per_epoch=0), *events[1:]]


def test_a_group_that_nobody_waits_for_any_more_is_told():
    assert check_ledger(long_open(1 + MAX_OPEN_STEPS)).problems == ()
    (problem,) = check_ledger(long_open(2 + MAX_OPEN_STEPS)).problems
    assert problem == (
        "group lost (t0) of step 1 is open after step 34: a group may be open for 32 steps"
    )
    assert check_ledger(long_open(59), max_open_steps=58).problems == ()
    assert check_ledger(long_open(59), max_open_steps=None).problems == ()


def test_groups_in_flight_in_another_runs_checkpoint_were_admitted_there():
    flying = [trained(8, x=""), Evicted(step=8, groups=("y",))]
    assert check_ledger([attempt(1, 7, mode="separate_async"), *flying]).problems == ()
    assert check_ledger([attempt(1, 7), *flying]).problems == (
        "group x was trained on and never admitted",
        "group y was evicted and never admitted",
    )


def test_a_complete_checkpoint_must_be_told_of(tmp_path: Path):
    ledger = Ledger(tmp_path)
    for event in [*FIRST_STEP, admitted(2, c="t2"), trained(2, c="t2")]:
        ledger.append(event)
    assert check_run(tmp_path).problems == ()
    for step in (1, 2):
        folder = tmp_path / "checkpoints" / f"global_step_{step}"
        folder.mkdir(parents=True)
        (folder / "COMPLETE").write_text('{"step": 1, "bytes": {}}' if step == 1 else "")
    assert check_run(tmp_path).problems == ()  # the second is not complete
    (folder / "COMPLETE").write_text('{"step": 2, "bytes": {}}')
    assert check_run(tmp_path).problems == (
        "checkpoint global_step_2 is complete and the ledger does not tell of it; the last step "
        "that it tells of is 2",
    )
    ledger.append(Checkpoint(step=2))
    assert check_run(tmp_path).problems == ()


def test_a_checkpoint_that_the_run_was_begun_from_may_lie_in_its_folder(tmp_path: Path):
    Ledger(tmp_path).append(attempt(1, 7))
    folder = tmp_path / "checkpoints" / "global_step_7"
    folder.mkdir(parents=True)
    (folder / "COMPLETE").write_text('{"step": 7, "bytes": {}}')
    assert check_run(tmp_path).problems == ()


def test_the_command_tells_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ledger = Ledger(tmp_path)
    for event in FIRST_STEP:
        ledger.append(event)
    assert main(["ledger", "check", str(tmp_path)]) == 0
    assert "2 groups admitted: 2 trained on" in capsys.readouterr().out
    ledger.append(trained(2, a="t0"))
    assert main(["ledger", "check", str(tmp_path)]) == 1
    assert "group a (t0) came to an end 2 times" in capsys.readouterr().out
    assert main(["ledger", "check", str(tmp_path / "none")]) == 2
    assert "must be a file that a run has written" in capsys.readouterr().err


def test_the_command_takes_a_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ledger = Ledger(tmp_path)
    for event in long_open(59):
        ledger.append(event)
    command = ["ledger", "check", str(tmp_path)]
    assert main(command) == 1
    assert "group lost (t0) of step 1 is open after step 59" in capsys.readouterr().out
    assert main([*command, "--max-open-steps", "58"]) == 0
    assert main([*command, "--max-open-steps=-1"]) == 2
    assert "--max-open-steps must be >= 0, got -1. Use 32." in capsys.readouterr().err


def test_an_empty_ledger_is_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Ledger(tmp_path).path.touch()
    assert main(["ledger", "check", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "the ledger is empty" in said and "no task was lost" not in said
