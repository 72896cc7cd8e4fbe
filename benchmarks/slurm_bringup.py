"""Seconds from the start of a Slurm job to all nodes registered, and to the first training step.

::

    python benchmarks/slurm_bringup.py                       # Ray alone, on 2, 4 and 8 nodes
    python benchmarks/slurm_bringup.py --nodes 2 --stack --policy runs/policies/tiny

It brings up a local Slurm of virtual nodes with the script that LOCAL_SLURM names (as root), or
uses the cluster that SLURM_CONF names. Times are those of the job's own log, so waiting in the
queue does not count. All virtual nodes share one machine's cores: the growth with their number is
an upper bound of what real nodes show.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCAL_SLURM = Path(os.environ.get("LOCAL_SLURM", ROOT.parent / "shared/tools/local_slurm.sh"))
PATIENCE_S = 1800

LINE = re.compile(r"\[\S+ \+(?P<second>\d+)s\] (?P<text>.*)")
JOINED = re.compile(r"(?P<node>\S+) joined after (?P<second>[\d.]+) s")


def main() -> int:
    """Measure each number of nodes and print a table; 1 when a job failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", default="2,4,8", help="numbers of nodes, separated by commas")
    parser.add_argument("--stack", action="store_true", help="go on to a training step")
    parser.add_argument("--policy", type=Path, help="model folder, with --stack")
    options = parser.parse_args()
    if options.stack and options.policy is None:
        parser.error("--stack needs --policy")
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, load {load:.1f}, Ray on every node; seconds from the job's start"
    )
    exit_code = 0
    for number in map(int, options.nodes.split(",")):
        with cluster(number) as environment, tempfile.TemporaryDirectory() as folder:
            try:
                said = measure(number, environment, Path(folder), options)
            except JobFailedError as error:
                said, exit_code = str(error), 1
            print(f"{number} nodes: {said}", flush=True)
    return exit_code


class JobFailedError(RuntimeError):
    """A job did not do what was to be measured; the message ends with its log."""


@contextmanager
def cluster(num_nodes: int) -> Iterator[dict[str, str]]:
    """The environment of a cluster with at least so many nodes."""
    if "SLURM_CONF" in os.environ:
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        environment = {
            **os.environ,
            "SLURM_LAB": folder,
            "SLURM_CONF": f"{folder}/etc/slurm.conf",
            "SLURM_LAB_NODES": str(num_nodes),
            "SLURM_LAB_TIMEOUT": "120",
            "MA_SCRATCH": "/tmp/ray",
            # A virtual node has no name server, and torch asks one for the name of every peer.
            "RES_OPTIONS": "timeout:1 attempts:1",
        }
        subprocess.run(
            ["bash", LOCAL_SLURM, "start"], env=environment, check=True, stdout=sys.stderr
        )
        try:
            yield environment
        finally:
            subprocess.run(["bash", LOCAL_SLURM, "stop"], env=environment, check=True)


def measure(
    num_nodes: int, environment: dict[str, str], folder: Path, options: argparse.Namespace
) -> str:
    """Run one job to its end and read its times."""
    log, run = folder / "job.log", folder / "run"
    script, arguments = "with_ray.sbatch", ["true"]
    if options.stack:
        script = "train_gigpo.sbatch"
        arguments = [
            "configs/experiment/frozenlake_cpu.yaml",
            f"run.dir={run}",
            f"actor_rollout_ref.model.path={options.policy.absolute()}",
            f"cluster.data_parallel_size={num_nodes}",
            f"data.train_batch_size={num_nodes}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}",
            "env.rollout.n=4",
            "trainer.val_before_train=false",
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
            "trainer.total_training_steps=1",
        ]
    command = ["sbatch", "--parsable", f"--nodes={num_nodes}", "--gpus-per-node=2"]
    command += ["--cpus-per-task=4", f"--output={log}", str(ROOT / "slurm" / script), *arguments]
    settings = {"MA_ROOT": str(ROOT), "MA_LOGS": str(folder), "MA_HEAD_DEADLINE_S": "600"}
    settings["MA_OBJECT_STORE_BYTES"] = str(80 * 2**20) if not options.stack else ""
    answer = subprocess.run(
        command, env={**environment, **settings}, check=True, text=True, capture_output=True
    )
    job = answer.stdout.strip()
    times = {"first episode": 0.0, "first step": 0.0} if options.stack else {}
    began = None
    deadline = time.monotonic() + PATIENCE_S
    while subprocess.run(
        ["squeue", "-h", "-j", job], env=environment, text=True, capture_output=True
    ).stdout.strip():
        if time.monotonic() > deadline:
            raise JobFailedError(f"job {job} does not end:\n{log.read_text()}")
        began = began or (time.monotonic() if log.exists() and log.stat().st_size else None)
        for name, place in (
            ("first episode", run / "episodes"),
            ("first step", run / "metrics.jsonl"),
        ):
            if began and name in times and not times[name] and _has_content(place):
                times[name] = time.monotonic() - began
        time.sleep(0.1)
    return _phases(log.read_text(), times)


def _has_content(place: Path) -> bool:
    files = [place] if place.is_file() else list(place.glob("*.jsonl")) if place.is_dir() else []
    return any(file.stat().st_size for file in files)


def _phases(text: str, times: dict[str, float]) -> str:
    """What the log tells, in the order of events.

    Raises:
        JobFailedError: the driver did not end with 0, or never began.
    """
    phases = {}
    succeeded = False
    for line in text.splitlines():
        joined, said = JOINED.match(line), LINE.match(line)
        if joined:
            phases.setdefault("head", float(joined["second"]))
            phases["last node"] = float(joined["second"])
        elif said and said["text"].startswith("all "):
            phases["driver starts"] = float(said["second"])
        elif said and said["text"].startswith("the driver has ended"):
            phases["driver ended"] = float(said["second"])
            succeeded = said["text"].endswith("exit code 0")
        elif said and said["text"].startswith("ends with"):
            phases["cleaned up"] = float(said["second"])
    if not succeeded:
        raise JobFailedError(f"failed:\n{text[-2000:]}")
    return ", ".join(f"{name} {second:.0f}" for name, second in (phases | times).items() if second)


if __name__ == "__main__":
    raise SystemExit(main())
