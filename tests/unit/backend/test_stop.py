"""What signals do to a run. Each case is a process of its own: handlers belong to a process."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys

import pytest

from megatron_agent.backend.stop import EARLY_SIGNALS, EXIT_REQUEUE, STOP_SIGNALS, StopRequested

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


def test_a_run_after_another_does_not_stop_for_its_signals(repo_root):
    code = """
os.kill(me, signal.SIGUSR1)
StopSwitch.install()
say("again", StopSwitch.requested())
StopSwitch.release()
StopSwitch.install()
say("another", StopSwitch.requested())
"""
    assert run_program(repo_root, code).stdout.splitlines()[1:] == ["again True", "another False"]


@pytest.mark.parametrize("signum", EARLY_SIGNALS)
def test_a_signal_during_start_up_is_remembered(repo_root, signum):
    code = f"""
StopSwitch.release()
StopSwitch.remember()
StopSwitch.leave_if_requested()
os.kill(me, {int(signum)})
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as ray.init does
StopSwitch.install()
say("remembered", StopSwitch.exit_code())
try:
    StopSwitch.leave_if_requested()
except Exception as error:
    say(error)
try:
    os.kill(me, signal.SIGTERM)
    time.sleep(10)
except KeyboardInterrupt:
    say("interrupted")
"""
    done = run_program(repo_root, code)
    expected = EXIT_REQUEUE if signum == signal.SIGUSR1 else 128 + signum
    assert done.stdout.splitlines()[1:] == [
        f"remembered {expected}",
        "stopped on request before its first step",
        "interrupted",
    ]
    assert f"{signum.name}: will stop before the first step. Send it again" in done.stderr


def test_ctrl_c_ends_a_start_up_at_once(repo_root):
    code = """
signal.signal(signal.SIGINT, signal.default_int_handler)
StopSwitch.remember()
try:
    os.kill(me, signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    say("interrupted", StopSwitch.requested())
"""
    assert run_program(repo_root, code).stdout.splitlines()[1:] == ["interrupted False"]


_START_UP = """
import os, runpy, signal, sys
from megatron_agent import cli

def checked(overrides, **_):
    os.kill(os.getpid(), signal.SIGUSR1)  # in the middle of the start-up
    return None, None

def train(overrides, **_):
    from megatron_agent.backend import launch
    checked(overrides)
    launch._run = lambda config, run_dir: launch.StopSwitch.leave_if_requested() or 0
    return launch.run(None, None)

sys.argv = ["program", "train"]
"""


@pytest.mark.parametrize(
    "program",
    [
        # The command, and the module that a job starts.
        "import megatron_agent.train as module; module.train = train; sys.exit(cli.main())",
        "cli._train = lambda options, argv: train(options.overrides)\n"
        "sys.argv = ['program']\nrunpy.run_module('megatron_agent.train', run_name='__main__')",
    ],
)
def test_a_run_that_is_stopped_before_ray_leaves_with_the_same_code(repo_root, program):
    done = subprocess.run(
        [sys.executable, "-c", _START_UP + program],
        cwd=repo_root,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == EXIT_REQUEUE, done.stderr
    assert "stopped on request before its first step; start the same command again" in done.stderr


def test_the_request_says_which_step_was_the_last_and_survives_pickling():
    error = pickle.loads(pickle.dumps(StopRequested(7)))
    assert error.global_step == 7
    assert str(error) == "stopped on request after step 7"
