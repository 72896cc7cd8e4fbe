"""The trainer's way of telling the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_agent.backend.run_ledger import RunLedger, check_before_resume
from megatron_agent.ledger import Trained, check_ledger, read_ledger
from megatron_agent.ledger.events import LedgerError

pytestmark = pytest.mark.unit


def row(episode_return: float, *, success: bool = False, failed: bool = False) -> dict[str, object]:
    return {"episode_return": episode_return, "success": success, "failed": failed}


def begun(tmp_path: Path, mode: str = "sync") -> RunLedger:
    ledger = RunLedger(tmp_path, mode=mode)
    ledger.begin_attempt(resumed_step=0, tasks_per_epoch=4)
    return ledger


def test_outcomes_are_of_sessions_not_of_rows(tmp_path: Path):
    ledger = begun(tmp_path)
    ledger.admitted(1, ["a", "b"], ["t0", "t1"])
    ledger.note_sessions({("a", 0): row(1.0, success=True), ("a", 1): row(0.0, failed=True)})
    ledger.trained(1, ["a"], ["b"])
    (line,) = [e for e in read_ledger(tmp_path / "ledger.jsonl") if isinstance(e, Trained)]
    (outcome,) = line.groups
    assert (outcome.task_id, outcome.return_mean) == ("t0", 0.5)
    assert (outcome.num_success, outcome.num_failed) == (1, 1)
    assert [(gone.task_id, gone.return_mean) for gone in line.removed] == [("t1", None)]


def test_a_new_process_knows_the_tasks_of_groups_in_flight(tmp_path: Path):
    ledger = begun(tmp_path, "colocate_async")
    ledger.admitted(1, ["a", "b"], ["t0", "t1"])
    ledger.trained(1, ["a"])
    ledger.checkpoint(1)
    later = RunLedger(tmp_path, mode="colocate_async")
    later.begin_attempt(resumed_step=1, tasks_per_epoch=4)
    later.trained(2, ["b"])
    events = read_ledger(tmp_path / "ledger.jsonl")
    assert check_ledger(events).problems == ()
    assert isinstance(events[-1], Trained)
    assert events[-1].groups[0].task_id == "t1"


def test_a_broken_history_is_refused_before_the_start(tmp_path: Path):
    check_before_resume(tmp_path, 3)  # a checkpoint of another run
    ledger = begun(tmp_path)
    ledger.admitted(1, ["a"], ["t0"])
    ledger.trained(1, ["a"])
    check_before_resume(tmp_path, 0)
    with pytest.raises(LedgerError, match="goes on from step 1, of which the ledger has no check"):
        check_before_resume(tmp_path, 1)
    ledger.checkpoint(1)
    check_before_resume(tmp_path, 1)


def test_a_checkpoint_of_the_run_must_be_told_of(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(
        LedgerError, match=r"must tell how the run came to step 3, got none\. Restore"
    ):
        check_before_resume(tmp_path, 3, must_tell=True)
    path.touch()
    with pytest.raises(LedgerError, match="must tell how the run came to step 3, got an empty one"):
        check_before_resume(tmp_path, 3, must_tell=True)
    check_before_resume(tmp_path, 7)  # begun from a checkpoint of another run
    path.write_bytes(b"\xff\n")
    with pytest.raises(LedgerError, match="line 1 must be an event of the ledger"):
        check_before_resume(tmp_path, 3)


def test_a_group_in_flight_for_long_is_a_warning_at_a_resume(tmp_path: Path, caplog):
    ledger = begun(tmp_path, "separate_async")
    ledger.admitted(1, ["lost"], ["t0"])
    for step in range(1, 60):
        ledger.admitted(step, [f"g{step}"], [f"t{step}"])
        ledger.trained(step, [f"g{step}"])
    ledger.checkpoint(59)
    check_before_resume(tmp_path, 59)
    assert "group lost (t0) of step 1 is open after step 59" in caplog.text
