"""What a site refuses, and settings that cannot work there: told early, and how to mend it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1500)]

REPO_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def launch(slurm, tmp_path, model_folder):
    """``megatron-agent launch`` on this cluster; the model is only a shape."""

    def run(*overrides: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "megatron_agent.cli", "launch", "frozenlake_cpu"]
        return subprocess.run(
            [
                *command,
                "--nodes=2",
                f"actor_rollout_ref.model.path={model_folder}",
                f"cluster.slurm.logs={tmp_path}/logs",
                *overrides,
            ],
            cwd=REPO_ROOT,
            env={**slurm.environment, "PYTHONPATH": str(REPO_ROOT)},
            text=True,
            capture_output=True,
        )

    return run


def test_a_wrong_partition_is_refused_with_the_key_to_set(launch) -> None:
    done = launch("cluster.slurm.partition=nowhere")
    assert done.returncode == 2
    assert "sbatch refused the job" in done.stderr
    assert "nvalid partition name" in done.stderr
    assert "Set cluster.slurm.partition" in done.stderr


def test_a_wrong_account_is_refused_or_a_reason_in_the_queue(launch, slurm) -> None:
    if not slurm.is_local:
        pytest.skip("makes a partition: for a local cluster alone")
    made = slurm.run("scontrol", "create", "PartitionName=team", "Nodes=ALL", "AllowAccounts=team")
    assert made.returncode == 0, made.stderr
    done = launch("cluster.slurm.partition=team", "cluster.slurm.account=others")
    if done.returncode == 0:  # without EnforcePartLimits Slurm takes the job, and lets it wait
        slurm.jobs.append(done.stderr.split()[-1].rstrip("."))
        said = slurm.run("squeue", "-h", "-o", "%R", "-j", slurm.jobs[-1]).stdout
        slurm.make_whole()
    else:
        said = done.stderr
    slurm.run("scontrol", "delete", "PartitionName=team")
    assert "account" in said


def test_more_gpus_than_a_node_has_are_refused(launch) -> None:
    done = launch("cluster.slurm.gpus_per_node=64")
    assert done.returncode == 2
    assert "cluster.slurm.gpus_per_node" in done.stderr


def test_an_output_folder_that_cannot_be_written_fails_without_a_word(job) -> None:
    # Slurm's own behaviour, which is why `launch` makes the folder first.
    job.submit("--output=/proc/version/job.log")
    state = job.wait_for_end()
    assert (state["JobState"], state["Reason"]) == ("FAILED", "JobLaunchFailure"), state


def test_logs_that_cannot_be_written_are_named(job) -> None:
    job.submit(MA_LOGS="/proc/version/logs")
    state = job.wait_for_end()
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "64:0")
    assert "error: logs cannot be written to /proc/version/logs/" in job.log()


def test_a_container_that_is_not_there_is_named(job) -> None:
    job.submit(MA_CONTAINER="apptainer", MA_CONTAINER_IMAGE="/images/gone.sif")
    state = job.wait_for_end()
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "64:0")
    assert "error: The container image '/images/gone.sif' does not exist on node" in job.log()


def test_the_environment_is_checked_before_anything_starts(job) -> None:
    job.submit(MA_VENV=os.devnull)
    assert job.wait_for_end()["ExitCode"] == "64:0"
    assert "error: MA_VENV must be a virtual environment, got '/dev/null'" in job.log()
