"""How long from the command to the first finished training step, and where the time and memory go.

    python benchmarks/startup.py                 # the whole stack, TP=2, forked workers
    python benchmarks/startup.py --compare       # the same with a fresh Python for every process

Prints seconds per phase, CPU seconds and memory per process (memory that several processes share is
counted once, as PSS), and the peak of the whole run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
PHASES = (
    ("checked", "run.json"),
    ("tasks made", "tasks/eval.parquet"),
    ("imports done", "logs/prefork.log"),
)


@dataclass
class Sample:
    """What was seen of one process."""

    name: str
    cpu_s: float = 0.0
    peak_mb: float = 0.0


@dataclass
class Watch:
    """Follows a process and all that descends from it, by a mark in the environment."""

    mark: str
    samples: dict[int, Sample] = field(default_factory=dict)
    peak_mb: float = 0.0

    def look(self) -> None:
        total = 0.0
        for process in self._processes():
            try:
                name = _name(process.cmdline())
                cpu = process.cpu_times()
                memory = process.memory_full_info().pss / 2**20
            except (psutil.Error, OSError):
                continue
            sample = self.samples.setdefault(process.pid, Sample(name))
            sample.name = name
            sample.cpu_s = cpu.user + cpu.system
            sample.peak_mb = max(sample.peak_mb, memory)
            total += memory
        self.peak_mb = max(self.peak_mb, total)

    def _processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.environ().get("MEGATRON_AGENT_STARTUP_MARK") == self.mark:
                    yield process
            except (psutil.Error, OSError):
                continue


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--policy", type=Path, help="policy folder (default: a random one is made)")
    parser.add_argument("--compare", action="store_true", help="also without forked workers")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        policy = args.policy or _random_policy(Path(folder) / "policy")
        variants = [("forked", True)] + ([("fresh", False)] if args.compare else [])
        seconds = {}
        for name, prefork in variants:
            run_dir = Path(folder) / name
            overrides = [f"cluster.prefork={str(prefork).lower()}", *args.overrides]
            seconds[name] = _measure(name, run_dir, policy, overrides)
    if "fresh" in seconds:
        print(f"\nfresh / forked = {seconds['fresh'] / seconds['forked']:.2f}")
    return 0


def _measure(name: str, run_dir: Path, policy: Path, overrides: list[str]) -> float:
    mark = f"{name}-{time.time()}"
    watch = Watch(mark)
    started = time.time()
    with (run_dir.parent / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "megatron_agent.train",
                "experiment=frozenlake_cpu",
                f"run.dir={run_dir}",
                f"actor_rollout_ref.model.path={policy}",
                "trainer.total_training_steps=2",
                "trainer.val_before_train=false",
                "trainer.test_freq=-1",
                "trainer.save_freq=-1",
                "data.train_batch_size=4",
                "actor_rollout_ref.actor.ppo_mini_batch_size=2",
                "env.rollout.n=4",
                "env.tasks.num_train=64",
                "env.tasks.num_eval=8",
                *overrides,
            ],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env=_environment(mark),
        )
        while process.poll() is None:
            watch.look()
            time.sleep(0.5)
    if process.returncode != 0:
        raise SystemExit((run_dir.parent / f"{name}.log").read_text(errors="replace")[-3000:])
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return _report(name, started, run_dir, steps, watch)


def _report(
    name: str, started: float, run_dir: Path, steps: list[dict[str, Any]], watch: Watch
) -> float:
    first = steps[0]["time"] - started
    print(f"\n{name}: {first:.1f} s from the command to the end of the first training step")
    for phase, file in PHASES:
        if (run_dir / file).exists():
            print(f"  {(run_dir / file).stat().st_mtime - started:6.1f} s  {phase}")
    print(f"  {first - steps[0]['timing_s/step']:6.1f} s  servers and trainer ready")
    print(f"  {first:6.1f} s  first step done (it took {steps[0]['timing_s/step']:.1f} s)")
    print(f"         a warm step takes {steps[-1]['timing_s/step']:.1f} s")
    print(f"  peak memory of the run: {watch.peak_mb / 1024:.1f} GB (shared pages counted once)")
    print(f"  {'process':44s} {'CPU s':>7s} {'peak MB':>8s}")
    for sample in sorted(watch.samples.values(), key=lambda s: -s.cpu_s)[:20]:
        print(f"  {sample.name:44s} {sample.cpu_s:7.1f} {sample.peak_mb:8.0f}")
    total = sum(sample.cpu_s for sample in watch.samples.values())
    print(f"  {'all ' + str(len(watch.samples)) + ' processes':44s} {total:7.1f}")
    return first


def _name(cmdline: list[str]) -> str:
    text = " ".join(cmdline)
    for part in ("prefork.server", "megatron_agent.train", "env_worker", "gcs_server", "raylet"):
        if part in text:
            return part
    if cmdline and cmdline[0].startswith("ray::"):
        return cmdline[0].split(".")[0]
    return next((Path(arg).name for arg in cmdline if arg.endswith(".py")), text[:44])


def _environment(mark: str) -> dict[str, str]:
    import os

    return {**os.environ, "MEGATRON_AGENT_STARTUP_MARK": mark}


def _random_policy(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_policy.py"), f"--out={folder}"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
