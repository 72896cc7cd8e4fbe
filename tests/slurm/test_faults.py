"""What a cluster does to a job, done on purpose: processes, daemons, nodes and cables."""

from __future__ import annotations

import time

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1500)]


def test_ray_ending_on_a_node_requeues_the_job_and_names_the_node(job, slurm) -> None:
    job.submit(LIGHT_STEPS="40")
    job.wait_for_steps(2)
    slurm.lab("exec", "node2", "bash", "-c", "kill -9 $(pgrep -x raylet)")
    state = job.wait_for_end()
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), job.log()
    assert "error: Ray ended on node2." in job.log() or "RayError" in job.log()
    assert "failure 1, of which 3 are borne: back into the queue" in job.log()
    job.assert_taken_once(40)


def test_a_lost_daemon_of_slurm_costs_an_attempt(job, slurm) -> None:
    job.submit(LIGHT_STEPS="120")
    job.wait_for_steps(2)
    slurm.lab("slurmd-kill", "node2")
    job.wait_for(lambda: slurm.nodes_in("down", "down*") >= 1 or job.state["Restarts"] == "1")
    slurm.lab("node-start", "node2")
    state = job.wait_for_end()
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), job.log()
    job.assert_taken_once(120)


def test_power_loss_of_a_node_costs_an_attempt(job, slurm) -> None:
    job.submit(LIGHT_STEPS="60")
    job.wait_for_steps(2)
    slurm.lab("node-kill", "node2")
    job.wait_for(lambda: job.state["JobState"] != "RUNNING" or job.state["Restarts"] != "0")
    slurm.lab("node-start", "node2")
    state = job.wait_for_end()
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), job.log()
    job.assert_taken_once(60)


def test_a_cable_that_is_out_for_a_while_costs_nothing(job, slurm) -> None:
    job.submit(LIGHT_STEPS="40")
    job.wait_for_steps(2)
    slurm.lab("net-cut", "node2")
    time.sleep(20)
    slurm.lab("net-heal", "node2")
    state = job.wait_for_end()
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "0"), job.log()
    job.assert_taken_once(40)


def test_a_node_that_never_comes_is_a_reason_in_the_queue(job, slurm) -> None:
    if slurm.nodes_in("unknown", "unknown*", "down", "down*") < 1:
        pytest.skip("every node of this cluster is up")
    job.submit("--nodes=3")
    job.wait_for(lambda: "Nodes_required" in job.state["Reason"] or "DOWN" in job.state["Reason"])
    assert job.state["JobState"] == "PENDING"
