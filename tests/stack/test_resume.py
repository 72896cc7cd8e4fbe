"""Stop a run in any way, start the same command again, and it goes on as if nothing had
happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest

from megatron_agent.backend.stop import EXIT_REQUEUE
from megatron_agent.ledger import Ledger, LedgerReport, check_ledger, read_ledger

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2400)]

MakeRun = Callable[..., "TrainingRun"]  # noqa: F821 - see conftest.py
STEPS = ("trainer.total_training_steps=4", "trainer.save_freq=1")


def test_killed_and_stopped_runs_see_the_same_tasks_in_the_same_order(training_run: MakeRun):
    whole = training_run("whole", *STEPS)
    assert whole.finish() == 0, whole.output()[-3000:]

    broken = training_run("broken", *STEPS)
    process = broken.start()
    broken.wait_for(lambda: _has_checkpoint(broken, 1), process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _assert_nothing_left(str(broken.folder))

    process = broken.start()
    broken.wait_for(lambda: _has_checkpoint(broken, 2), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=600) == 128 + signal.SIGTERM, broken.output()[-3000:]
    assert "start the same command again" in broken.output()

    assert broken.finish() == 0, broken.output()[-3000:]
    assert [line["step"] for line in broken.metrics()] == [1, 2, 3, 4]
    assert broken.tasks_by_step() == whole.tasks_by_step()
    assert sorted(whole.tasks_by_step()) == [1, 2, 3, 4]
    for run in (whole, broken):
        report = _ledger(run)
        assert report.problems == ()
        assert (report.last_step, report.num_trained, report.num_open) == (4, 8, 0)


def test_a_step_is_set_aside_while_it_is_played(training_run: MakeRun):
    """Without a checkpoint of its own, so that one is written while the servers generate."""
    run = training_run(
        "aside",
        "trainer.total_training_steps=2",
        "trainer.save_freq=2",
        "trainer.stop_grace_s=0",
        # Long enough for the signal to come before the end.
        "data.max_response_length=512",
    )
    process = run.start()
    run.wait_for(lambda: _num_admitted(run) == 2, process)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=600) == EXIT_REQUEUE, run.output()[-3000:]
    assert "The episodes of step 2 are set aside." in run.output()
    assert _has_checkpoint(run, 1)

    assert run.finish() == 0, run.output()[-3000:]
    assert [line["step"] for line in run.metrics()] == [1, 2]
    report = _ledger(run)
    assert report.problems == ()
    assert (report.last_step, report.num_trained, report.num_open) == (2, 4, 0)


def test_a_finished_run_started_again_ends_at_once(training_run: MakeRun):
    run = training_run("done", "trainer.total_training_steps=1", "trainer.save_freq=1")
    assert run.finish() == 0, run.output()[-3000:]
    assert run.finish() == 0, run.output()[-3000:]
    assert len(run.metrics()) == 1


def _ledger(run: object) -> LedgerReport:
    return check_ledger(read_ledger(Ledger(run.folder).path))  # type: ignore[attr-defined]


def _num_admitted(run: object) -> int:
    """Steps whose tasks have been handed to the rollout."""
    path = Ledger(run.folder).path  # type: ignore[attr-defined]
    return path.read_text().count('"kind": "admitted"') if path.exists() else 0


def _has_checkpoint(run: object, step: int) -> bool:
    return (run.folder / "checkpoints" / f"global_step_{step}" / "COMPLETE").is_file()  # type: ignore[attr-defined]


def _assert_nothing_left(mark: str) -> None:
    """Ray, the servers and the environments end with the driver, however it ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = [p for p in psutil.process_iter() if mark in _environment(p)]
        if not left:
            return
        time.sleep(0.5)
    listing = subprocess.run(["ps", "-ef"], capture_output=True, text=True, check=False).stdout
    raise AssertionError(f"processes are left: {left}\n{listing[-3000:]}")


def _environment(process: psutil.Process) -> str:
    try:
        return process.environ().get("TENSORBOARD_DIR", "")
    except (psutil.Error, OSError):
        return ""
