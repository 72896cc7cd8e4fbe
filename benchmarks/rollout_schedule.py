"""How long the rollout of an iteration takes, by schedule, for 64 to 4,096 environments: simulated.

    python benchmarks/rollout_schedule.py                           # ALFWorld, as measured below
    python benchmarks/rollout_schedule.py --env webshop --workers 8
    python benchmarks/rollout_schedule.py --journal 'runs/my_run/episodes/*.jsonl'   # yours
    python benchmarks/rollout_schedule.py --slow-resets 0.01:30     # one reset in 100 takes 30 s

Schedules: *lock-step* (everybody waits for the slowest, three times a step), *coroutines* (each
episode at its own pace), *first started* (``env.rollout.redundancy``: n + r start, the n that start
first are played) and, to compare, *first finished* (n + r are played, the n that end first are
kept), with what it does to the sample: the mean length of the episodes that it keeps.

Measured: latencies of environments (`MEASURED`, or a run's journal: steps, tokens, times). Assumed:
the speed of the servers (``--token-ms``, ``--sequence-ms``, ``--replicas``), and without a journal
the lengths of episodes and responses (`ASSUMED`). The model is in ``schedule_simulator.py``.
"""

from __future__ import annotations

import argparse
import glob
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.schedule_simulator import EpisodePlan, Machine, Outcome, Schedule, simulate

PERCENTS = (0, 1, 5, 25, 50, 75, 95, 99, 100)
MEASURED = {
    "alfworld": {
        "reset_s": (0.11, 0.11, 0.12, 0.17, 0.29, 0.41, 0.91, 1.1, 1.1),
        "step_s": (0.0011, 0.0014, 0.0016, 0.0021, 0.0027, 0.0043, 0.0099, 0.013, 0.15),
    },
    "webshop": {
        "reset_s": (1.4e-4, 1.4e-4, 1.4e-4, 1.5e-4, 1.8e-4, 4.0e-4, 4.6e-4, 6.3e-4, 6.3e-4),
        "step_s": (6.8e-6, 7.0e-6, 9.4e-6, 1.6e-5, 2.5e-5, 4.5e-5, 2.3e-4, 4.9e-4, 7.3e-4),
    },
    "frozenlake": {
        "reset_s": (1.6e-4, 1.6e-4, 1.6e-4, 1.8e-4, 2.0e-4, 2.2e-4, 2.8e-4, 6.9e-4, 6.9e-4),
        "step_s": (8.7e-6, 8.7e-6, 8.8e-6, 9.0e-6, 9.3e-6, 9.9e-6, 1.4e-5, 3.6e-5, 1.1e-4),
    },
}
"""Seconds at `PERCENTS`, as ``benchmarks/envs.py --latencies --env NAME --seed 0`` printed them;
ALFWorld's resets are the first ones of 40 games."""


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What no measurement of environments can tell."""

    prompt_tokens: float = 600.0
    response_tokens: float = 120.0
    """Median; the spread is log-normal with a sigma of 0.6."""
    max_steps: int = 50
    solved: float = 0.6
    """Share of episodes that end early, after 5 steps to all of them; the others run to the end."""


ASSUMED = Assumed()
PROMPT_WEIGHT = 0.01
"""Reading a token costs this share of writing one: it is read together with all others."""

Draw = Callable[[np.random.Generator], EpisodePlan]


def main() -> int:
    """See the module's docstring."""
    arguments = parse()
    draw, source = source_of(arguments)
    machine = Machine(
        num_workers=arguments.workers,
        base_s=arguments.token_ms / 1e3,
        per_sequence_s=arguments.sequence_ms / 1e3,
        replicas=arguments.replicas,
        max_batch=arguments.max_batch,
    )
    slow_share, slow_s = (float(part) for part in arguments.slow_resets.split(":"))
    redundancy = arguments.redundancy
    print(f"{source}; {arguments.workers} environment workers; groups of {arguments.group}")
    print(
        f"a token takes {arguments.token_ms:g} ms + {arguments.sequence_ms:g} ms for each sequence "
        f"of its replica, {arguments.replicas} replicas; "
        f"{slow_share:.1%} of resets take {slow_s:g} s more"
    )
    print(
        f"{'envs':>5} {'lock-step':>11} {'coroutines':>15} {f'first started +{redundancy}':>20} "
        f"{f'first finished +{redundancy}':>21}   mean length: all, kept by first finished"
    )
    for num_envs in map(int, arguments.sizes.split(",")):
        rng = np.random.default_rng((arguments.seed, num_envs))
        groups = [
            [with_slow_resets(draw(rng), rng, slow_share, slow_s) for _ in range(size)]
            for size in [arguments.group + redundancy] * (num_envs // arguments.group)
        ]
        schedules: tuple[Schedule, ...] = (
            "lock_step",
            "coroutines",
            "first_started",
            "first_finished",
        )
        outcomes = {
            schedule: simulate(groups, machine, schedule, num_seats=arguments.group)
            for schedule in schedules
        }
        print(row_of(num_envs, outcomes))
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--env", default="alfworld", choices=sorted(MEASURED))
    parser.add_argument("--journal", help="episodes of a run (a pattern), instead of --env")
    parser.add_argument("--sizes", default="64,256,1024,4096", help="numbers of environments")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--redundancy", type=int, default=2)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=4, help="inference servers")
    parser.add_argument("--token-ms", type=float, default=12.0)
    parser.add_argument("--sequence-ms", type=float, default=0.05)
    parser.add_argument("--max-batch", type=int, default=512, help="sequences on one replica")
    parser.add_argument("--slow-resets", default="0:0", metavar="SHARE:SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def row_of(num_envs: int, outcomes: dict[Schedule, Outcome]) -> str:
    """A line of the table; ratios are to lock-step."""
    lock_step_s = outcomes["lock_step"].seconds
    cells = [
        f"{outcome.seconds:8.0f} s ({lock_step_s / outcome.seconds:4.2f}x)"
        for schedule, outcome in outcomes.items()
        if schedule != "lock_step"
    ]
    return (
        f"{num_envs:5d} {lock_step_s:9.0f} s {cells[0]} {cells[1]:>20} {cells[2]:>21}   "
        f"{outcomes['coroutines'].mean_steps_kept:.1f}, "
        f"{outcomes['first_finished'].mean_steps_kept:.1f}"
    )


def source_of(arguments: argparse.Namespace) -> tuple[Draw, str]:
    """Where episodes are drawn from, and what to call it."""
    if arguments.journal is None:
        return draw_measured(MEASURED[arguments.env]), f"{arguments.env} as measured"
    episodes = read_episodes(sorted(glob.glob(arguments.journal)))
    if not episodes:
        raise SystemExit(f"--journal {arguments.journal!r} has no episode with a step.")
    return (
        lambda rng: episodes[int(rng.integers(len(episodes)))],
        f"{len(episodes)} episodes of {arguments.journal}",
    )


def draw_measured(measured: dict[str, tuple[float, ...]]) -> Draw:
    """Episodes with measured latencies and assumed lengths."""

    def quantile(rng: np.random.Generator, name: str, size: int) -> np.ndarray:
        return np.interp(rng.uniform(0, 100, size), PERCENTS, measured[name])

    def draw(rng: np.random.Generator) -> EpisodePlan:
        is_solved = rng.uniform() < ASSUMED.solved
        num_steps = int(rng.integers(5, ASSUMED.max_steps)) if is_solved else ASSUMED.max_steps
        response_T = ASSUMED.response_tokens * rng.lognormal(0.0, 0.6, num_steps)
        return EpisodePlan(
            reset_s=float(quantile(rng, "reset_s", 1)[0]),
            tokens_T=(response_T + PROMPT_WEIGHT * ASSUMED.prompt_tokens).tolist(),
            env_s_T=quantile(rng, "step_s", num_steps).tolist(),
        )

    return draw


def read_episodes(paths: list[str]) -> list[EpisodePlan]:
    """Episodes of a run, as they were: lengths, tokens and times."""
    plans = []
    for path in paths:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the end of a killed run
            turns = record["turns"]
            if turns:
                plans.append(
                    EpisodePlan(
                        reset_s=record.get("reset_s", 0.0),
                        tokens_T=[
                            turn["num_response_tokens"] + PROMPT_WEIGHT * turn["num_prompt_tokens"]
                            for turn in turns
                        ],
                        env_s_T=[turn["env_s"] for turn in turns],
                    )
                )
    return plans


def with_slow_resets(
    plan: EpisodePlan, rng: np.random.Generator, share: float, seconds: float
) -> EpisodePlan:
    """Some resets take much longer: a server that does not answer, a file system that hangs."""
    if rng.uniform() >= share:
        return plan
    return EpisodePlan(reset_s=plan.reset_s + seconds, tokens_T=plan.tokens_T, env_s_T=plan.env_s_T)


if __name__ == "__main__":
    raise SystemExit(main())
