"""Jobs on a real Slurm, with a light driver: to the end, and through signals."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1500)]

ONE_NODE = "--nodes=1"
"""Where a second node would change nothing but the time."""


def test_a_job_runs_to_its_end_and_leaves_nothing_behind(job, slurm) -> None:
    job.submit()
    job.wait_for_steps(1)
    listed = job.log()
    if slurm.is_local:
        # The secret is in the environment of Ray's processes and nowhere that others can see.
        listed += slurm.lab("exec", "node1", "ps", "-eo", "args")
        environments = slurm.lab(
            "exec", "node1", "bash", "-c", "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
        )
        secrets = {
            line.partition("=")[2]
            for line in environments.splitlines()
            if line.startswith("RAY_AUTH_TOKEN=")
        }
        assert secrets and not any(secret in listed for secret in secrets)
    state = job.wait_for_end()
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), job.log()
    assert "all 2 node(s) joined" in job.log()
    job.assert_taken_once(6)
    logs = job.folder / "logs" / job.number / "attempt-0"
    assert len(list(logs.glob("ray-*.log"))) == 2
    if slurm.is_local:
        for node in ("node1", "node2"):
            assert "ray" not in slurm.lab("exec", node, "ps", "-eo", "comm,args")
            assert f"ma-{job.number}" not in slurm.lab("exec", node, "ls", "/tmp/ray")
            assert slurm.lab("exec", node, "ls", "/dev/shm") == ""


def test_usr1_ends_in_a_requeue_and_the_next_attempt_goes_on(job, slurm) -> None:
    job.submit(ONE_NODE, LIGHT_STEPS="12")
    job.wait_for_steps(2)
    slurm.run("scancel", "-b", "-s", "USR1", job.number)
    state = job.wait_for_end()
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), job.log()
    job.assert_taken_once(12)
    assert {attempt for attempt, _ in job.steps()} == {0, 1}
    log = job.log()
    assert "SIGUSR1: passed on to the driver" in log
    assert "stopped on request: back into the queue" in log
    assert "attempt 1, on" in log


def test_a_time_limit_is_announced_in_time(job) -> None:
    # Slurm looks every 30 s, so the signal comes 30 to 60 s before the end of the second minute.
    job.submit(ONE_NODE, "--time=2", "--signal=B:USR1@30", LIGHT_STEPS="1000")
    job.wait_for(lambda: job.state.get("Restarts") == "1")
    assert "SIGUSR1: passed on to the driver" in job.log() or "before the driver" in job.log()
    assert "back into the queue" in job.log()


def test_a_cancelled_job_does_not_come_back(job, slurm) -> None:
    job.submit(ONE_NODE, LIGHT_STEPS="1000")
    job.wait_for_steps(1)
    slurm.run("scancel", job.number)
    state = job.wait_for_end()
    assert (state["JobState"], state["Restarts"]) == ("CANCELLED", "0"), job.log()
    assert "back into the queue" not in job.log()


def test_a_lock_of_a_dead_process_keeps_nobody_out(job) -> None:
    (job.folder / "run").mkdir()
    (job.folder / "run/run.lock").write_text("pid 1 on a node that is gone\n")
    job.submit(ONE_NODE, LIGHT_STEPS="1")
    assert job.wait_for_end()["JobState"] == "COMPLETED", job.log()
