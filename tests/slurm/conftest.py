"""A real Slurm for the slurm tier: the one that SLURM_CONF names, or a local one.

The local one is brought up by the script that LOCAL_SLURM names: virtual nodes with their own
network, processes and shared memory, in about a second. It needs root. Whatever a test does to a
node is undone before the next test.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from megatron_agent.ledger import Ledger, check_ledger, read_ledger
from tests.slurm.light_ledger import GROUPS_PER_STEP

REPO_ROOT = Path(__file__).resolve().parents[2]
LOCAL_SLURM = Path(os.environ.get("LOCAL_SLURM", REPO_ROOT.parent / "shared/tools/local_slurm.sh"))
LAB_LOCK = Path(tempfile.gettempdir()) / "megatron-agent-local-slurm.lock"
"""The script's network has one name on a machine, so one local cluster at a time."""

PATIENCE_S = 600
"""For whatever must happen: Ray alone takes a minute on a machine that others use too."""


@dataclass
class SlurmCluster:
    """The means to submit, to look, and (on a local cluster) to break things."""

    environment: dict[str, str]
    scratch: str
    is_local: bool
    jobs: list[str] = field(default_factory=list)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm."""
        return subprocess.run(
            command, env=self.environment, text=True, capture_output=True, timeout=PATIENCE_S
        )

    def lab(self, *arguments: str) -> str:
        """Run the local cluster's script: exec, node-kill, slurmd-kill, node-start, net-cut."""
        if not self.is_local:
            pytest.skip("breaks a node: for a local cluster alone")
        done = subprocess.run(
            ["bash", LOCAL_SLURM, *arguments], env=self.environment, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def state(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        shown = self.run("scontrol", "show", "job", "--oneliner", job).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def wait_for(self, condition: Callable[[], bool], why: Callable[[], str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain:\n{why()}"
            time.sleep(0.5)

    def nodes_in(self, *states: str) -> int:
        """How many nodes are in one of these states."""
        shown = self.run("sinfo", "-h", "-N", "-o", "%T").stdout.split()
        return sum(name in states for name in shown)

    def make_whole(self) -> None:
        """No jobs of ours, and every node usable."""
        if self.jobs:
            self.run("scancel", *self.jobs)
            self.wait_for(
                lambda: not self.run("squeue", "-h", "-j", ",".join(self.jobs)).stdout.strip(),
                lambda: self.run("squeue").stdout,
            )
            self.jobs.clear()
        if self.is_local:
            for node in ("node1", "node2"):
                self.lab("net-heal", node)
                self.lab("node-start", node)
            self.wait_for(
                lambda: self.nodes_in("idle") >= 2, lambda: self.run("sinfo", "-N").stdout
            )


@dataclass
class SlurmJob:
    """One job around the light driver (or another command), with a folder of its own."""

    cluster: SlurmCluster
    folder: Path
    number: str = ""

    def submit(
        self,
        *options: str,
        script: str = "with_ray.sbatch",
        command: tuple[str, ...] = (),
        **environment: str,
    ) -> str:
        """Hand a script to sbatch on two nodes; returns the job's number.

        Args:
            options: further options of sbatch, which win over the usual ones.
            script: a file of ``slurm/``.
            command: its arguments; the light driver by default.
            environment: variables of the batch shell and the driver.
        """
        driver = ("python", str(Path(__file__).parent / "light_driver.py"), str(self.folder))
        done = subprocess.run(
            [
                "sbatch",
                "--parsable",
                "--nodes=2",
                "--gpus-per-node=2",
                "--cpus-per-task=4",
                "--time=30",
                f"--output={self.folder}/job.log",
                *options,
                str(REPO_ROOT / "slurm" / script),
                *(command or driver),
            ],
            env={
                **self.cluster.environment,
                "MA_ROOT": str(REPO_ROOT),
                "MA_LOGS": str(self.folder / "logs"),
                "MA_SCRATCH": self.cluster.scratch,
                # A busy machine needs patience.
                "MA_HEAD_DEADLINE_S": "300",
                "MA_JOIN_ATTEMPTS": "50",
                "MA_OBJECT_STORE_BYTES": str(80 * 2**20),
                # A virtual node has no name server, and torch asks one for the name of every peer:
                # one second to wait, not six.
                "RES_OPTIONS": "timeout:1 attempts:1",
                **environment,
            },
            text=True,
            capture_output=True,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stderr
        self.number = done.stdout.strip()
        self.cluster.jobs.append(self.number)
        return self.number

    @property
    def state(self) -> dict[str, str]:
        return self.cluster.state(self.number)

    def log(self) -> str:
        path = self.folder / "job.log"
        return path.read_text(errors="replace") if path.exists() else "(no log)"

    def steps(self) -> list[tuple[int, int]]:
        """(attempt, step) of every step that the light driver finished."""
        path = self.folder / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(attempt), int(step)) for attempt, step in map(str.split, lines)]

    def assert_taken_once(self, num_steps: int) -> None:
        """Every step was taken once and in order, by the driver's own file and by its ledger."""
        assert [step for _, step in self.steps()] == list(range(1, num_steps + 1)), self.log()
        report = check_ledger(read_ledger(Ledger(self.folder / "run").path))
        assert report.problems == (), report.text
        assert (report.last_step, report.num_open) == (num_steps, 0), report.text
        assert report.num_trained == GROUPS_PER_STEP * num_steps, report.text

    def wait_for_steps(self, count: int) -> None:
        self.wait_for(lambda: len(self.steps()) >= count)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        self.cluster.wait_for(condition, lambda: f"{self.state}\n{self.log()}")

    def wait_for_end(self) -> dict[str, str]:
        """The state in which Slurm files the job."""
        running = ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING")
        self.wait_for(lambda: self.state["JobState"] not in running)
        return self.state


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """The cluster of the session."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MA_")}
    environment["PATH"] = f"{environment['PATH']}:/usr/sbin"
    if "SLURM_CONF" in os.environ:
        # A cluster that LOCAL_SLURM has started before may be broken too.
        is_local = "SLURM_LAB" in os.environ
        yield SlurmCluster(environment, "/tmp/ray" if is_local else "/tmp", is_local)
        return
    if not LOCAL_SLURM.is_file():
        pytest.fail(f"no Slurm: set SLURM_CONF, or LOCAL_SLURM (now {LOCAL_SLURM})")
    with LAB_LOCK.open("w") as lock, tempfile.TemporaryDirectory(prefix="lab-") as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment |= {
            "SLURM_LAB": folder,
            "SLURM_CONF": f"{folder}/etc/slurm.conf",
            "SLURM_LAB_NODES": "3",
            "SLURM_LAB_DOWN": "node3",
            "SLURM_LAB_TIMEOUT": "120",
        }
        environment.setdefault("SLURM_LAB_NET", "10.213.9")
        started = subprocess.run(
            ["bash", LOCAL_SLURM, "start"], env=environment, text=True, capture_output=True
        )
        try:
            assert started.returncode == 0, started.stderr
            # In a virtual node /tmp/ray is the local disk; the rest is shared.
            yield SlurmCluster(environment, "/tmp/ray", is_local=True)
        finally:
            subprocess.run(["bash", LOCAL_SLURM, "stop"], env=environment, check=True)


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, whole before and after."""
    slurm_cluster.make_whole()
    yield slurm_cluster
    slurm_cluster.make_whole()


@pytest.fixture
def job(slurm: SlurmCluster, tmp_path: Path) -> SlurmJob:
    return SlurmJob(slurm, tmp_path)
