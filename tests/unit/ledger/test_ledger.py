"""What the ledger proves, on histories short enough to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_agent.cli import main
from megatron_agent.ledger import (
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


def trained(step: int, *groups: str, removed: tuple[str, ...] = ()) -> Trained:
    def outcomes(names: tuple[str, ...]) -> tuple[GroupOutcome, ...]:
        return tuple(
            GroupOutcome(group=name, task_id="", return_mean=0.5, num_success=1, num_failed=0)
            for name in names
        )

    return Trained(step=step, groups=outcomes(groups), removed=outcomes(removed))


FIRST_STEP: list[Event] = [
    attempt(1),
    admitted(1, a="t0", b="t1"),
    trained(1, "a", "b"),
    Checkpoint(step=1),
]


def test_an_undisturbed_run_has_no_problem():
    events = [*FIRST_STEP, admitted(2, c="t2", d="t3"), trained(2, "c", "d")]
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
    lost = [admitted(2, c="t2", d="t3"), trained(2, "c", "d")]
    again = [attempt(2, 1), admitted(2, e="t2", f="t3"), trained(2, "e", "f")]
    report = check_ledger([*FIRST_STEP, *lost, *again])
    assert report.problems == ()
    assert (report.num_attempts, report.num_retaken_steps, report.num_trained) == (2, 1, 4)


def test_a_run_without_a_checkpoint_begins_anew():
    begun = [attempt(1), admitted(1, a="t0", b="t1")]
    report = check_ledger([*begun, attempt(2), admitted(1, c="t0", d="t1"), trained(1, "c", "d")])
    assert report.problems == ()
    assert report.num_admitted == 2


def test_a_run_that_began_from_another_runs_checkpoint_may_begin_anew_too():
    begun = [attempt(1, 7), admitted(8, a="t0"), trained(8, "a")]
    assert check_ledger([*begun, attempt(2, 7), admitted(8, b="t0")]).problems == ()


def test_tasks_of_a_step_that_was_set_aside_come_again_and_are_not_lost():
    aside = [admitted(2, c="t2", d="t3"), SetAside(step=2), Checkpoint(step=1)]
    again = [attempt(2, 1), admitted(2, e="t2", f="t3"), trained(2, "e", "f")]
    report = check_ledger([*FIRST_STEP, *aside, *again])
    assert report.problems == ()
    assert report.num_open == 0


def test_groups_in_flight_at_a_checkpoint_go_on_under_their_ids():
    flying = [
        attempt(1, mode="colocate_async"),
        admitted(1, a="t0", b="t1"),
        trained(1, "a"),
        Checkpoint(step=1),
    ]
    resumed = [attempt(2, 1, mode="colocate_async"), trained(2, "b")]
    report = check_ledger([*flying, *resumed])
    assert report.problems == ()
    assert report.num_open == 0


def test_removed_and_evicted_groups_have_come_to_their_end():
    events = [attempt(1), admitted(1, a="t0", b="t1", c="t2"), Evicted(step=1, groups=("c",))]
    report = check_ledger([*events, trained(1, "a", removed=("b",))])
    assert report.problems == ()
    assert (report.num_removed, report.num_evicted, report.num_open) == (1, 1, 0)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ([trained(3, "c")], "step 3 was trained where step 2 was due"),
        ([trained(1, "c")], "step 1 was trained where step 2 was due"),
        ([trained(2, "a")], "group a (t0) came to an end 2 times"),
        ([trained(2, "x")], "group x was trained on and never admitted"),
        ([admitted(2, a="t2")], "group a (t2) was admitted twice"),
        (
            [admitted(2, c="t2", d="t3"), trained(2, "c")],
            "group d (t3) was left behind by step 2",
        ),
        ([admitted(2, c="t0")], "task t0 was admitted 2 times in epoch 1"),
        ([attempt(2, 5)], "attempt 2 goes on from step 5, of which the ledger has no checkpoint"),
        (
            [admitted(2, c="t2"), attempt(2, 1), admitted(2, d="t3")],
            "step 2 began with other tasks when it was taken again: t2, then t3",
        ),
    ],
)
def test_a_broken_history_is_told(more: list[Event], problem: str):
    assert problem in check_ledger([*FIRST_STEP, *more]).problems


def test_events_survive_the_file(tmp_path: Path):
    events = [
        *FIRST_STEP,
        SetAside(step=2),
        Evicted(step=2, groups=("x",)),
        trained(2, "c", removed=("d",)),
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


def test_the_command_tells_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ledger = Ledger(tmp_path)
    for event in FIRST_STEP:
        ledger.append(event)
    assert main(["ledger", "check", str(tmp_path)]) == 0
    assert "2 groups admitted: 2 trained on" in capsys.readouterr().out
    ledger.append(trained(2, "a"))
    assert main(["ledger", "check", str(tmp_path)]) == 1
    assert "group a (t0) came to an end 2 times" in capsys.readouterr().out
    assert main(["ledger", "check", str(tmp_path / "none")]) == 2
    assert "must be a file that a run has written" in capsys.readouterr().err
