"""The designs that ``benchmarks/envs.py`` compares: each plays the same environments at random."""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
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
from megatron_agent.tasks import EnvTask

MARK = "MEGATRON_AGENT_ENVS_BENCHMARK"
"""Environment variable by which the processes of one measurement are known."""
NUM_CHUNKS = 5
"""A rate is the median of so many."""


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

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # for the actors
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
