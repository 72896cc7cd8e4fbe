"""Environment steps per second and memory: our pool, one Ray actor per environment, threads.

    python benchmarks/envs.py                             # FrozenLake, up to 512 environments
    python benchmarks/envs.py --sizes 16,64 --designs pool,ray --env sokoban --option num_boxes=2
    python benchmarks/envs.py --latencies --env webshop   # quantiles for rollout_schedule.py

Every design plays the same random actions in the same environments and resets those that end; each
measurement has a process of its own. Only numbers of one run compare: look at the ratios. ``CPU``
counts all processes of a design and does not depend on what else the machine does.

- ``bare``: the environments one after the other in a loop, nothing around them.
- ``pool``: `megatron_agent.rollout.env_pool.EnvPool`, one coroutine per environment.
- ``ray``: one Ray actor per environment, all stepped together (lock-step). A Ray actor is a process
  of some 60 MB that takes a second of CPU to start; more than ``--ray-limit`` are not tried.
- ``threads``: one thread per environment (at most 64), all stepped together. No time limit, no
  protection, one Python lock, and not for engines that keep state in their modules.

ALFWorld's engine has a benchmark of its own: ``benchmarks/alfworld_engine.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.env_designs import (
    MARK,
    NUM_CHUNKS,
    Player,
    play_bare,
    play_pool,
    play_ray,
    play_threads,
)
from megatron_agent.tasks import EnvTask, draw_tasks

DESIGNS = ("bare", "pool", "ray", "threads")
QUANTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)


def main() -> int:
    """See the module's docstring."""
    arguments = parse()
    if arguments.design:
        measure(arguments)
    elif arguments.latencies:
        print(json.dumps(latencies(task_of(arguments))))
    else:
        compare(arguments)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--env", default="frozenlake")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--sizes", default="1,16,128,512", help="numbers of environments")
    parser.add_argument("--designs", default="bare,pool,ray,threads")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the pool")
    parser.add_argument("--steps", type=int, default=10_000, help="in all, for each measurement")
    parser.add_argument("--ray-limit", type=int, default=64)
    parser.add_argument("--latencies", action="store_true", help="print quantiles of one bare one")
    parser.add_argument("--design", choices=DESIGNS, help=argparse.SUPPRESS)
    parser.add_argument("--num-envs", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def task_of(arguments: argparse.Namespace) -> EnvTask:
    """What is played, by all environments alike."""
    options = dict(option.split("=", 1) for option in arguments.option)
    parsed = {name: json.loads(value) for name, value in options.items()}
    return draw_tasks(arguments.env, "train", 1, arguments.seed, parsed)[0]


def compare(arguments: argparse.Namespace) -> None:
    """Run every design at every size and print the table."""
    designs = arguments.designs.split(",")
    print(
        f"{arguments.env}, {arguments.workers} workers in the pool, {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(
        f"{'envs':>5} {'design':8} {'steps/s':>9} {'ms/step':>8} {'CPU ms/step':>12} "
        f"{'resets s':>9} {'memory MB':>10}   pool is"
    )
    for num_envs in map(int, arguments.sizes.split(",")):
        found: dict[str, dict[str, float]] = {}
        for design in designs:
            if design == "ray" and num_envs > arguments.ray_limit:
                print(f"{num_envs:5d} {design:8} not tried: --ray-limit {arguments.ray_limit}")
                continue
            try:
                found[design] = measure_apart(design, num_envs)
            except subprocess.CalledProcessError as error:
                print(f"{num_envs:5d} {design:8} fails: {last_line(error.stderr)}")
                continue
            print(row_of(design, num_envs, found))
        if {"bare", "pool"} <= found.keys():
            overhead = {
                name: found["pool"][name] - found["bare"][name] for name in ("step_ms", "cpu_ms")
            }
            print(
                f"      the pool adds {overhead['step_ms']:.3f} ms a step, and "
                f"{overhead['cpu_ms']:.3f} ms of CPU"
            )


def row_of(design: str, num_envs: int, found: dict[str, dict[str, float]]) -> str:
    """A line of the table."""
    numbers, pool = found[design], found.get("pool")
    ratio = ""
    if pool is not None and design not in ("pool", "bare"):
        ratio = (
            f"{pool['steps_per_s'] / numbers['steps_per_s']:.1f} x as fast, "
            f"{numbers['cpu_ms'] / pool['cpu_ms']:.1f} x less CPU, "
            f"{numbers['memory_mb'] / pool['memory_mb']:.1f} x less memory"
        )
    return (
        f"{num_envs:5d} {design:8} {numbers['steps_per_s']:9.0f} {numbers['step_ms']:8.3f} "
        f"{numbers['cpu_ms']:12.3f} {numbers['reset_s']:9.2f} {numbers['memory_mb']:10.0f}"
        f"   {ratio}"
    )


def measure_apart(design: str, num_envs: int) -> dict[str, float]:
    """The numbers of one design at one size, from a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:]]
    command += [f"--design={design}", f"--num-envs={num_envs}"]
    mark = f"{design}-{num_envs}-{time.time()}"
    done = subprocess.run(
        command, env=os.environ | {MARK: mark}, capture_output=True, text=True, check=True
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    numbers: dict[str, float] = json.loads(line)  # Ray has things to say on stdout, too
    return numbers


def last_line(text: str) -> str:
    """What an exception says; its traceback is above."""
    return text.strip().rsplit("\n", 1)[-1]


def measure(arguments: argparse.Namespace) -> None:
    """Measure one design in this process and print the numbers as JSON."""
    num_rounds = max(2, arguments.steps // arguments.num_envs // NUM_CHUNKS)
    task = task_of(arguments)
    if arguments.design == "pool":
        asyncio.run(play_pool(task, arguments.num_envs, num_rounds, arguments.workers))
    else:
        play = {"bare": play_bare, "ray": play_ray, "threads": play_threads}[arguments.design]
        play(task, arguments.num_envs, num_rounds)


def latencies(task: EnvTask, num_tasks: int = 40) -> dict[str, list[float]]:
    """Quantiles of the CPU seconds that bare environments take, on tasks of the training split.

    CPU time is the latency of an environment that computes and never waits, on a machine that does
    nothing else.
    """
    reset_s, step_s = [], []
    tasks = draw_tasks(task.env, "train", num_tasks + 1, task.seed, task.options)
    Player(tasks[0], 0)  # libraries are loaded once
    for drawn in tasks[1:]:
        started_s = time.process_time()
        player = Player(drawn, 0)
        reset_s.append(time.process_time() - started_s)
        for _ in range(20):
            started_s = time.process_time()
            goes_on = player.play_step()
            if not goes_on:
                break
            step_s.append(time.process_time() - started_s)
    return {"reset_s": quantiles(reset_s), "step_s": quantiles(step_s)}


def quantiles(values: Sequence[float]) -> list[float]:
    """At `QUANTILES` percent."""
    ordered = sorted(values)
    chosen = (ordered[round(percent / 100 * (len(ordered) - 1))] for percent in QUANTILES)
    return [float(f"{value:.2g}") for value in chosen]


if __name__ == "__main__":
    raise SystemExit(main())
