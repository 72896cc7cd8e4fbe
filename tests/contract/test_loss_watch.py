"""A driver that waits for an actor that is gone is woken; one that waits for a busy one is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from megatron_agent.backend.loss_watch import watched_actors

pytestmark = pytest.mark.contract

DRIVER = """
import os, signal, sys, threading, time
import ray
from megatron_agent.backend.loss_watch import LossWatch
from megatron_agent.errors import LostProcessError

@ray.remote(num_cpus=0)
class Rank:
    def pid(self):
        return os.getpid()
    def work(self, seconds):
        time.sleep(seconds)

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
busy, victim = Rank.remote(), Rank.remote()
pid = ray.get(victim.pid.remote())
work = busy.work.remote(3)
how = sys.argv[1]
with LossWatch(lambda: [busy, victim], pause_s=0.2, grace_s=1.0):
    if how == "none":
        ray.get(work)
        sys.exit(0)
    os.kill(pid, signal.SIGKILL)
    try:
        threading.Event().wait()
    except LostProcessError as error:
        print(error, flush=True)
        if how == "stuck":
            threading.Event().wait()
        sys.exit(3)
"""


@pytest.mark.parametrize(("how", "code"), [("none", 0), ("killed", 3), ("stuck", 86)])
def test_a_lost_actor_wakes_the_driver_and_a_busy_one_does_not(how, code) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, how], text=True, capture_output=True, timeout=200
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("nothing more will come: ActorDiedError" in done.stdout) == (how != "none")


def test_transfer_queue_keeps_its_actors_where_we_look() -> None:
    from transfer_queue import interface

    assert interface._TQ_CONTROLLER is None
    assert not interface._TQ_STORAGE
    assert watched_actors(None, None) == []
