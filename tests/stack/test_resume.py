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


def test_a_finished_run_started_again_ends_at_once(training_run: MakeRun):
    run = training_run("done", "trainer.total_training_steps=1", "trainer.save_freq=1")
    assert run.finish() == 0, run.output()[-3000:]
    assert run.finish() == 0, run.output()[-3000:]
    assert len(run.metrics()) == 1


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
