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
- ``threads``: one thread per environment (at most 64), all stepped together.

ALFWorld's engine has a benchmark of its own: ``benchmarks/alfworld_engine.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from envs.base import Observation, StepOutcome
from envs.registry import load_env
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.tasks import EnvTask, draw_tasks

MARK = "MEGATRON_AGENT_ENVS_BENCHMARK"
DESIGNS = ("bare", "pool", "ray", "threads")
NUM_CHUNKS = 5
"""A rate is the median of so many."""
QUANTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)


class Player:
    """One environment in this process, played at random for ever."""

    def __init__(self, task: EnvTask, number: int) -> None:
        self._task, self._rng = task, random.Random(number)
        self._env = load_env(task.env).make()
        self.restart()

    def restart(self) -> None:
        options = dict(self._task.options)
        self._observation = self._env.reset(seed=self._task.seed, options=options)

    def play_step(self, _: Any = None) -> bool:
        """Take one step; whether the episode went on."""
        outcome = self._env.step(choose(self._rng, self._observation))
        if is_over(outcome):
            self.restart()
            return False
        self._observation = outcome.observation
        return True


def choose(rng: random.Random, observation: Observation) -> str:
    """A random action; of an environment that does not say which there are, nonsense."""
    return rng.choice(observation.admissible_actions or ("wait",))


def is_over(outcome: StepOutcome) -> bool:
    """Whether the episode has ended."""
    return outcome.terminated or outcome.truncated


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
    """What is played."""
    options = dict(option.split("=", 1) for option in arguments.option)
    parsed = {name: json.loads(value) for name, value in options.items()}
    return EnvTask(
        env=arguments.env, task_id="task", seed=arguments.seed, split="train", options=parsed
    )


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
            found[design] = measure_apart(design, num_envs)
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
        command, env=os.environ | {MARK: mark}, stdout=subprocess.PIPE, text=True, check=True
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    numbers: dict[str, float] = json.loads(line)  # Ray has things to say on stdout, too
    return numbers


def measure(arguments: argparse.Namespace) -> None:
    """Measure one design in this process and print the numbers as JSON."""
    num_rounds = max(2, arguments.steps // arguments.num_envs // NUM_CHUNKS)
    task = task_of(arguments)
    if arguments.design == "pool":
        asyncio.run(play_pool(task, arguments.num_envs, num_rounds, arguments.workers))
    else:
        play = {"bare": play_bare, "ray": play_ray, "threads": play_threads}[arguments.design]
        play(task, arguments.num_envs, num_rounds)


class Report:
    """Rates by chunk, and what the processes of this measurement have used meanwhile."""

    def __init__(self, num_steps: int, reset_s: float) -> None:
        self._num_steps, self._reset_s = num_steps, reset_s
        self._chunk_s: list[float] = []
        self._cpu_s = cpu_seconds()
        self._started_s = time.perf_counter()

    def chunk_done(self) -> None:
        now_s = time.perf_counter()
        self._chunk_s.append(now_s - self._started_s)
        self._started_s = now_s

    def print(self) -> None:
        chunk_s = statistics.median(self._chunk_s)
        cpu_s = (cpu_seconds() - self._cpu_s) / len(self._chunk_s)
        numbers = {
            "steps_per_s": self._num_steps / chunk_s,
            "step_ms": chunk_s / self._num_steps * 1e3,
            "cpu_ms": cpu_s / self._num_steps * 1e3,
            "reset_s": self._reset_s,
            "memory_mb": sum(p.memory_full_info().pss for p in processes()) / 2**20,
        }
        print(json.dumps(numbers), flush=True)


def processes() -> list[psutil.Process]:
    """All that this measurement has started, itself included."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == os.environ[MARK]:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def cpu_seconds() -> float:
    """CPU time that they have used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes())


def timed(do: Callable[[], Any]) -> tuple[Any, float]:
    """What ``do`` returns, and the seconds it took."""
    started_s = time.perf_counter()
    result = do()
    return result, time.perf_counter() - started_s


def play_bare(task: EnvTask, num_envs: int, num_rounds: int) -> None:
    """Nothing around the environments."""
    players, reset_s = timed(lambda: [Player(task, number) for number in range(num_envs)])
    report = Report(num_envs * num_rounds, reset_s)
    for _ in range(NUM_CHUNKS):
        for _ in range(num_rounds):
            for player in players:
                player.play_step()
        report.chunk_done()
    report.print()


def play_threads(task: EnvTask, num_envs: int, num_rounds: int) -> None:
    """A thread for each, in lock-step."""
    with ThreadPoolExecutor(min(num_envs, 64)) as executor:
        numbers: Sequence[int] = range(num_envs)
        players, reset_s = timed(
            lambda: list(executor.map(lambda number: Player(task, number), numbers))
        )
        report = Report(num_envs * num_rounds, reset_s)
        for _ in range(NUM_CHUNKS):
            for _ in range(num_rounds):
                list(executor.map(Player.play_step, players))
            report.chunk_done()
        report.print()


def play_ray(task: EnvTask, num_envs: int, num_rounds: int) -> None:
    """A Ray actor for each, in lock-step."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    actor = ray.remote(num_cpus=0.001)(Player)
    try:
        players = [actor.remote(task, number) for number in range(num_envs)]
        ray.get([player.play_step.remote() for player in players])
        _, reset_s = timed(lambda: ray.get([player.restart.remote() for player in players]))
        report = Report(num_envs * num_rounds, reset_s)
        for _ in range(NUM_CHUNKS):
            for _ in range(num_rounds):
                ray.get([player.play_step.remote() for player in players])
            report.chunk_done()
        report.print()
    finally:
        ray.shutdown()


async def play_pool(task: EnvTask, num_envs: int, num_rounds: int, num_workers: int) -> None:
    """A coroutine for each, over the worker processes of the pool."""
    pool = EnvPool(num_workers)
    await pool.start()
    sessions = [await pool.open_session(task, "group", number) for number in range(num_envs)]
    rngs = [random.Random(number) for number in range(num_envs)]
    warm = await asyncio.gather(*(session.reset() for session in sessions[:num_workers]))
    assert warm
    started_s = time.perf_counter()
    seen = list(await asyncio.gather(*(session.reset() for session in sessions)))
    report = Report(num_envs * num_rounds, time.perf_counter() - started_s)

    async def play(number: int) -> None:
        session, rng = sessions[number], rngs[number]
        for _ in range(num_rounds):
            outcome = await session.step(choose(rng, seen[number]))
            seen[number] = await session.reset() if is_over(outcome) else outcome.observation

    for _ in range(NUM_CHUNKS):
        await asyncio.gather(*(play(number) for number in range(num_envs)))
        report.chunk_done()
    report.print()
    await pool.close()


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
