"""A job without Slurm: the batch shell for real, with stand-ins for srun, scontrol and ray."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPO_ROOT = Path(__file__).resolve().parents[3]
SHIMS = Path(__file__).parent / "shims"
PATIENCE_S = 120
_numbers = itertools.count(os.getpid() * 100)


@dataclass
class ShimJob:
    """One job; `environment` and `plan` may be changed before it starts."""

    folder: Path
    nodes: tuple[str, ...] = ("node1", "node2")
    number: int = field(default_factory=lambda: next(_numbers))
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        (self.folder / "plan").mkdir()
        (self.folder / "shm").mkdir()
        binaries = self.folder / "venv" / "bin"
        binaries.mkdir(parents=True)
        for name in ("ray", "python"):
            (binaries / name).symlink_to(SHIMS / name)
        self.environment = {
            "PATH": f"{SHIMS}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "SHIM_LOG": str(self.folder / "calls.log"),
            "SHIM_PLAN": str(self.folder / "plan"),
            "SHIM_PYTHON": sys.executable,
            "SLURM_JOB_ID": str(self.number),
            "SLURM_JOB_NAME": "test",
            "SLURMD_NODENAME": self.nodes[0],
            "SLURM_GPUS_ON_NODE": "2",
            "MA_ROOT": str(REPO_ROOT),
            "MA_VENV": str(self.folder / "venv"),
            "MA_LOGS": str(self.folder / "logs"),
            "MA_SCRATCH": "/tmp",
            "MA_INTERFACE": "ib0",
            "MA_SHM": str(self.folder / "shm"),
            "MA_WATCH_PAUSE_S": "0.05",
            "MA_JOIN_PAUSE_S": "0.05",
            "MA_REQUEUE_PATIENCE_S": "0.05",
            "MA_SCONTROL_PAUSE_S": "0.05",
        }

    def plan(self, node: str, *words: str) -> None:
        """What `ray start` does on a node, try by try (shims/ray)."""
        (self.folder / "plan" / node).write_text("".join(f"{word}\n" for word in words))

    def start(self, driver: str, **environment: str) -> None:
        """Start the batch shell around a driver, a line of bash."""
        for marker in (*(self.folder / "plan").glob("*.joined"), self.folder / "plan" / "driver"):
            marker.unlink(missing_ok=True)
        script = (
            "set -euo pipefail\n"
            'source "${LIB:-$MA_ROOT}/slurm/lib/job.sh"\n'
            f"run_with_ray bash -c 'touch $SHIM_PLAN/driver; {driver}'\n"
        )
        self.process = subprocess.Popen(
            ["bash", "-c", script],
            env={
                "LIB": str(REPO_ROOT),
                "SLURM_JOB_NODELIST": ",".join(self.nodes),
                **self.environment,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            start_new_session=True,
        )

    def finish(self) -> tuple[int, str]:
        """The exit code and all that was said."""
        assert self.process is not None
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output

    def run(self, driver: str = "true", **environment: str) -> tuple[int, str]:
        self.start(driver, **environment)
        return self.finish()

    def signal(self, signum: signal.Signals, *, when: str = "") -> None:
        """Send the batch shell a signal, as soon as a file that a driver writes is there."""
        if when:
            self.wait_for(lambda: self.exists(when))
        assert self.process is not None
        self.process.send_signal(signum)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def calls(self, program: str) -> list[str]:
        """Command lines with which a stand-in was called."""
        log = self.folder / "calls.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if line.startswith(program)]

    def log(self, name: str, attempt: int = 0) -> str:
        return (self.folder / f"logs/{self.number}/attempt-{attempt}/{name}").read_text()

    def exists(self, name: str) -> bool:
        """Whether a file that a driver writes is there."""
        return (self.folder / "plan" / name).exists()


@pytest.fixture
def job(tmp_path: Path):
    made = ShimJob(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGKILL)


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a line of bash with parts of the library sourced."""

    def run(line: str, *parts: str, **environment: str) -> subprocess.CompletedProcess[str]:
        sources = "".join(f'source "{REPO_ROOT}/slurm/lib/{part}.sh"\n' for part in parts)
        return subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{sources}{line}\n"],
            env={
                "PATH": f"{SHIMS}:/usr/bin:/bin",
                "SHIM_LOG": str(tmp_path / "calls"),
                **environment,
            },
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
        )

    return run
