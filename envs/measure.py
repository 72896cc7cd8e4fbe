"""What an environment costs and how often its states repeat, measured with a random agent."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.base import TextEnv
from envs.playback import anchor_key, any_action, ended, has_actions
from envs.spec import EnvSpec
from envs.walks import long_walks, remarks

_MAX_STEPS = 30
_SETTLED_RESETS = 50
"""Resets before the growth of memory is measured: caches fill first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurements:
    """Costs of one environment; times in seconds, memory in bytes."""

    num_steps: int
    anchor_rate: float | None
    """Share of steps after a reset whose state another rollout of the same start also saw. None
    where nobody says what is legal: guesses that are refused stay where they are."""
    reset_s_p50: float
    reset_s_p99: float
    step_s_p50: float
    step_s_p99: float
    instance_bytes: float
    """Growth of the process per environment, or what Python allocated for one, if that is more: a
    process that has memory to spare does not grow."""
    num_resets: int
    """Resets of one object made while looking for a leak; fewer than asked for when they are
    slow."""
    leak_bytes_per_reset: float
    num_makes: int
    """Objects made, reset and closed while looking for a leak: a run makes one per session."""
    leak_bytes_per_make: float
    remarks: tuple[str, ...]
    """What random walks show that is probably a mistake (`envs.walks`)."""


def measure(
    spec: EnvSpec,
    seed: int,
    options: Mapping[str, Any],
    *,
    num_rollouts: int = 16,
    num_resets: int = 500,
    max_leak_s: float = 20.0,
) -> Measurements:
    """Play ``num_rollouts`` random rollouts of one start, then reset again and again.

    Args:
        spec: the environment.
        seed: where the rollouts start.
        options: of the environment.
        num_rollouts: group size of the rollouts; the anchor rate rises with it.
        num_resets: resets for the leak.
        max_leak_s: time allowed for those, half of it with a new object for each.
    """
    env = spec.make()  # what is loaded once does not belong to an instance
    is_told = has_actions(spec, env.reset(seed=seed, options=options))
    env.close()
    traced = _traced_bytes(spec, seed, options)
    gc.collect()
    before = resident_bytes()
    envs = [spec.make() for _ in range(num_rollouts)]
    resets_s: list[float] = []
    steps_s: list[float] = []
    visited = [
        _rollout(spec, env, seed, options, random.Random(member), resets_s, steps_s)
        for member, env in enumerate(envs)
    ]
    gc.collect()
    grown = resident_bytes() - before
    for env in envs:
        env.close()
    num_done, leak = _leak(spec, seed, options, num_resets, max_leak_s / 2, resets_s)
    num_made, leak_of_make = _leak(
        spec, seed, options, num_resets, max_leak_s / 2, resets_s, with_make=True
    )
    return Measurements(
        num_steps=len(steps_s),
        anchor_rate=anchor_rate(visited) if is_told else None,
        reset_s_p50=percentile(resets_s, 50),
        reset_s_p99=percentile(resets_s, 99),
        step_s_p50=percentile(steps_s, 50),
        step_s_p99=percentile(steps_s, 99),
        instance_bytes=max(traced, grown / num_rollouts),
        num_resets=num_done,
        leak_bytes_per_reset=leak,
        num_makes=num_made,
        leak_bytes_per_make=leak_of_make,
        remarks=tuple(remarks(long_walks(spec, seed, options))) if is_told else (),
    )


def anchor_rate(rollouts: Sequence[Sequence[Any]]) -> float:
    """Share of visits whose state is in at least two rollouts; 0 without visits.

    Example:
        >>> anchor_rate([["hall", "attic"], ["hall", "cellar"]])
        0.5
    """
    num_rollouts_of: dict[Any, int] = {}
    for visits in rollouts:
        for state in set(visits):
            num_rollouts_of[state] = num_rollouts_of.get(state, 0) + 1
    num_visits = sum(map(len, rollouts))
    shared = sum(num_rollouts_of[state] >= 2 for visits in rollouts for state in visits)
    return shared / num_visits if num_visits else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest value; 0 without values.

    Example:
        >>> percentile([3.0, 1.0, 2.0], 50)
        2.0
    """
    if not values:
        return 0.0
    place = round(percent / 100 * (len(values) - 1))
    return sorted(values)[place]


def resident_bytes() -> int:
    """Memory of this process now; 0 where the system does not tell (it is not Linux)."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _rollout(
    spec: EnvSpec,
    env: TextEnv,
    seed: int,
    options: Mapping[str, Any],
    rng: random.Random,
    resets_s: list[float],
    steps_s: list[float],
) -> list[Any]:
    """The states that a random agent sees after the reset, as hashable keys."""
    started_s = time.perf_counter()
    observation = env.reset(seed=seed, options=options)
    resets_s.append(time.perf_counter() - started_s)
    visited = []
    for _ in range(_MAX_STEPS):
        action = any_action(spec, rng, observation)
        started_s = time.perf_counter()
        outcome = env.step(action)
        steps_s.append(time.perf_counter() - started_s)
        observation = outcome.observation
        visited.append(repr(anchor_key(observation.anchor)))
        if ended(outcome):
            break
    return visited


def _traced_bytes(spec: EnvSpec, seed: int, options: Mapping[str, Any]) -> float:
    """What Python and numpy allocate for one environment with a few steps behind it."""
    rng = random.Random(seed)
    tracemalloc.start()
    try:
        kept, sizes = [], []
        for _ in range(3):
            before = tracemalloc.get_traced_memory()[0]
            env = spec.make()
            kept.append(env)
            observation = env.reset(seed=seed, options=options)
            for _ in range(3):
                outcome = env.step(any_action(spec, rng, observation))
                observation = outcome.observation
                if ended(outcome):
                    break
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    for env in kept:
        env.close()
    return float(max(0, min(sizes)))  # the first one also pays for what all share


def _leak(
    spec: EnvSpec,
    seed: int,
    options: Mapping[str, Any],
    num_resets: int,
    max_s: float,
    resets_s: list[float],
    *,
    with_make: bool = False,
) -> tuple[int, float]:
    """Resets made, and bytes that the process grew by with each after the first ones."""
    env, rng = spec.make(), random.Random(seed)
    deadline_s = time.perf_counter() + max_s
    settled, num_done = 0, 0
    first_number = min(_SETTLED_RESETS, num_resets // 2)
    for number in range(num_resets):
        if number == first_number:
            gc.collect()
            settled = resident_bytes()
        if with_make:
            env.close()
            env = spec.make()
        started_s = time.perf_counter()
        # Other seeds too: a cache that grows with every new start is a leak in a long run.
        start_seed = seed + number if spec.task_list is None else seed
        observation = env.reset(seed=start_seed, options=options)
        resets_s.append(time.perf_counter() - started_s)
        env.step(any_action(spec, rng, observation))
        num_done = number + 1
        if time.perf_counter() > deadline_s:
            break
    gc.collect()
    counted = num_done - first_number
    grown = resident_bytes() - settled if counted > 0 else 0
    env.close()
    return num_done, max(0.0, grown / counted) if counted > 0 else 0.0
