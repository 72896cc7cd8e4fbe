"""What signals do to a run. Each case is a process of its own: handlers belong to a process."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys

import pytest

from megatron_agent.backend.stop import EXIT_REQUEUE, STOP_SIGNALS, StopRequested

pytestmark = pytest.mark.unit

_PROGRAM = """
import os, signal, sys, time
from megatron_agent.backend.stop import StopSwitch
from pathlib import Path

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

StopSwitch.install()
say("before", StopSwitch.requested(), StopSwitch.exit_code())
me = os.getpid()
"""


def run_program(repo_root, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM + code],
        cwd=repo_root,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("signum", STOP_SIGNALS)
def test_the_first_signal_only_sets_the_flag(repo_root, signum):
    code = f"""
os.kill(me, {int(signum)})
time.sleep(0.01)
say("after", StopSwitch.requested(), StopSwitch.exit_code())
"""
    done = run_program(repo_root, code)
    expected = EXIT_REQUEUE if signum == signal.SIGUSR1 else 128 + signum
    assert done.stdout.splitlines() == ["before False 0", f"after True {expected}"]
    assert done.returncode == 0
    assert f"{signum.name}: will stop after this step" in done.stderr


def test_the_second_signal_unwinds_the_stack(repo_root):
    code = """
os.kill(me, signal.SIGTERM)
try:
    os.kill(me, signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    say("interrupted")
finally:
    say("cleaned up", StopSwitch.exit_code())
"""
    done = run_program(repo_root, code)
    # The exit code stays that of the signal that asked first.
    assert done.stdout.splitlines()[1:] == ["interrupted", "cleaned up 143"]
    assert "Second SIGINT: leaving at once." in done.stderr


def test_the_third_signal_ends_a_clean_up_that_hangs(repo_root):
    code = """
os.kill(me, signal.SIGINT)
try:
    os.kill(me, signal.SIGINT)
    time.sleep(10)
finally:
    say("cleaning up")
    os.kill(me, signal.SIGINT)
    time.sleep(10)
    say("never")
"""
    done = run_program(repo_root, code)
    assert done.stdout.splitlines()[1:] == ["cleaning up"]
    assert done.returncode == 128 + signal.SIGINT


def test_installing_again_forgets_an_earlier_signal(repo_root):
    code = """
os.kill(me, signal.SIGUSR1)
StopSwitch.install()
say("again", StopSwitch.requested())
"""
    assert run_program(repo_root, code).stdout.splitlines()[1:] == ["again False"]


def test_the_request_says_which_step_was_the_last_and_survives_pickling():
    error = pickle.loads(pickle.dumps(StopRequested(7)))
    assert error.global_step == 7
    assert str(error) == "stopped on request after step 7"
