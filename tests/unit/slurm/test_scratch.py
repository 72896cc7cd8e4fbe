"""A job ends what is its own on a node, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

PARTS = ("messages", "scratch")
JOB = str(os.getpid() * 100 + 99)


@pytest.fixture
def sleeper(tmp_path):
    """Starts a process of a job and an attempt, which may have a file open."""
    started = []

    def start(job: str, attempt: str | None, *, opens: Path | None = None, step: str = "0"):
        environment = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": step}
        if attempt is not None:
            environment["MA_ATTEMPT"] = attempt
        code = "import sys, time; f = open(sys.argv[1], 'w'); print(flush=True); time.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, str(opens or os.devnull)],
            env=environment,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def variables(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "shm").mkdir()
    return {
        "SLURM_JOB_ID": JOB,
        "SLURM_STEP_ID": "0",
        "MA_ATTEMPT": "1",
        "MA_JOB_SCRATCH": str(scratch),
        "MA_SHM": str(tmp_path / "shm"),
    }


def survives(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.3)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_only_processes_of_earlier_attempts_of_this_job_are_ended_before(
    shell, sleeper, variables
) -> None:
    earlier = sleeper(JOB, "0")
    others = [sleeper(JOB, "1"), sleeper(JOB + "1", "0"), sleeper(JOB, None)]
    assert shell("kill_processes_of_job other", *PARTS, **variables).returncode == 0
    assert not survives(earlier)
    assert all(survives(process) for process in others)


def test_a_step_ends_its_own_processes_alone(shell, sleeper, variables) -> None:
    own, other = sleeper(JOB, "1"), sleeper(JOB, "1", step="7")
    assert shell("kill_processes_of_job step", *PARTS, **variables).returncode == 0
    assert not survives(own)
    assert survives(other)


def test_a_process_that_hides_its_environment_is_known_by_its_files(
    shell, sleeper, variables
) -> None:
    hidden = sleeper("", None, opens=Path(variables["MA_JOB_SCRATCH"]) / "raylet.out")
    assert shell("kill_processes_of_job", *PARTS, **variables).returncode == 0
    assert not survives(hidden)


def test_a_fresh_scratch_folder_is_for_its_owner_alone(shell, variables) -> None:
    scratch = Path(variables["MA_JOB_SCRATCH"])
    (scratch / "stale").touch()
    assert shell("make_scratch", *PARTS, **variables).returncode == 0
    assert [path.name for path in scratch.iterdir()] == ["began"]
    assert scratch.stat().st_mode & 0o077 == 0


def test_shared_memory_goes_when_it_is_new_and_nobody_has_it_open(
    shell, sleeper, variables
) -> None:
    shm, scratch = Path(variables["MA_SHM"]), Path(variables["MA_JOB_SCRATCH"])
    (shm / "psm_old").touch()
    os.utime(shm / "psm_old", (time.time() - 100,) * 2)
    began_before(scratch)
    left = ("plasmaAb12", "torch_99999999_5_0", "psm_ab12", "sem.mp-ab12", "nccl-ab12")
    for name in left:
        (shm / name).touch()
    sleeper("1", "0", opens=shm / "psm_open")
    assert shell("remove_scratch", *PARTS, **variables).returncode == 0
    assert sorted(path.name for path in shm.iterdir()) == ["psm_old", "psm_open"]
    assert not scratch.exists()


def test_shared_memory_that_may_be_of_another_job_stays(shell, sleeper, variables) -> None:
    shm, scratch = Path(variables["MA_SHM"]), Path(variables["MA_JOB_SCRATCH"])
    began_before(scratch)
    names = ["dataset.bin", "cache", "psm_folder", "raytracing", "sem.other", "torch_weights"]
    for name in ("cache", "psm_folder"):
        (shm / name).mkdir()
        sleeper("1", "0", opens=shm / name / "open")
    for name in ("dataset.bin", "raytracing", "sem.other", "torch_weights"):
        (shm / name).touch()
    # Closed, but the process that made it lives.
    names.append(f"torch_{os.getpid()}_5_0")
    (shm / names[-1]).touch()
    assert shell("remove_scratch", *PARTS, **variables).returncode == 0
    assert sorted(path.name for path in shm.iterdir()) == sorted(names)
    assert (shm / "cache/open").exists() and (shm / "psm_folder/open").exists()


def began_before(scratch: Path) -> None:
    """The job began on the node some time ago."""
    (scratch / "began").touch()
    os.utime(scratch / "began", (time.time() - 50,) * 2)
