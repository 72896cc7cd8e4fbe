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
from megatron_agent.ledger import (
    Admitted,
    Ledger,
    LedgerReport,
    Trained,
    check_ledger,
    read_ledger,
)

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2400)]

MakeRun = Callable[..., "TrainingRun"]  # noqa: F821 - see conftest.py


def test_interrupted_runs_see_the_same_tasks_in_the_same_order(training_run: MakeRun) -> None:
    """Killed, stopped in an evaluation, interrupted in a step; against a whole run."""
    settings = (
        "trainer.total_training_steps=5",
        # Steps between two checkpoints, so that a stop must write one of its own.
        "trainer.save_freq=2",
        "trainer.test_freq=1",
        "trainer.stop_grace_s=0",
        # One answer, long enough for a signal to come before it ends.
        "env.max_steps=1",
        "data.max_response_length=256",
    )
    whole = training_run("whole", *settings)
    assert whole.finish() == 0, whole.output()[-3000:]

    # As a user starts it, with a server of its own: so the kill has everything to leave behind.
    alone = training_run("broken", *settings, alone=True)
    process = alone.start()
    alone.wait_for(lambda: _has_checkpoint(alone, 2), process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _assert_nothing_left(str(alone.folder))

    broken = training_run("broken", *settings)
    # A checkpoint is written while the servers generate, for the evaluation or for a step.
    process = broken.start()
    broken.wait_for(lambda: _num_events(broken, Trained, 3) == 1, process)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=600) == EXIT_REQUEUE, broken.output()[-3000:]
    assert "The evaluation is set aside" in broken.output()
    assert _has_checkpoint(broken, 3)

    process = broken.start()
    broken.wait_for(lambda: _num_events(broken, Admitted, 4) == 1, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) == 128 + signal.SIGINT, broken.output()[-3000:]
    assert "The episodes of step 4 are set aside." in broken.output()
    assert "start the same command again" in broken.output()

    assert broken.finish() == 0, broken.output()[-3000:]
    assert [line["step"] for line in broken.metrics()] == [1, 2, 3, 4, 5]
    assert broken.evaluated_steps() == whole.evaluated_steps() == [1, 2, 3, 4, 5]
    assert broken.tasks_by_step() == whole.tasks_by_step()
    assert sorted(whole.tasks_by_step()) == [1, 2, 3, 4, 5]
    # What was set aside is told from what was trained on.
    attempts = [
        e["attempt"] for e in broken.episodes() if e["global_step"] == 4 and e["split"] == "train"
    ]
    assert (max(attempts), attempts.count(4)) == (4, 6)
    for run in (whole, broken):
        report = _ledger(run)
        assert report.problems == ()
        assert (report.last_step, report.num_trained, report.num_open) == (5, 10, 0)

    # A finished run that is started again ends at once.
    assert broken.finish() == 0, broken.output()[-3000:]
    assert len(broken.metrics()) == 5


def _ledger(run: object) -> LedgerReport:
    return check_ledger(read_ledger(Ledger(run.folder).path))  # type: ignore[attr-defined]


def _num_events(run: object, kind: type[Admitted | Trained], step: int) -> int:
    """How often a step was begun (`Admitted`), or trained on, over all attempts."""
    path = Ledger(run.folder).path  # type: ignore[attr-defined]
    events = read_ledger(path) if path.exists() else ()
    return sum(isinstance(event, kind) and event.step == step for event in events)


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
