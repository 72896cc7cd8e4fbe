"""Makes games for environment ``textworld``.

Usage::

    python -m envs.textworld.generate --out games --kinds cooking --train 100 --eval 20

A game takes 2 to 20 seconds (Inform 7 compiles it). Games that are there are left alone, so a run
that was stopped goes on where it ended, and more games can be added later. The seed of a game is
part of its name; training and evaluation have different seeds. Equal arguments make equal games.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.textworld.games import KINDS

logger = logging.getLogger(__name__)

FIRST_SEED = {"train": 0, "eval": 1_000_000}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One game to make."""

    path: Path
    """Of the ``.z8``."""
    kind: str
    seed: int
    level: int
    """Rooms to the coin or the treasure; for a meal, half of it in ingredients, three at most."""


def jobs(
    folder: Path, kinds: Sequence[str], *, num_train: int, num_eval: int, level: int
) -> list[Job]:
    """The games that are not there yet, in the order of their names' seeds.

    Example:
        >>> [job.path.name for job in jobs(Path("none"), ["cooking"], num_train=0, num_eval=2,
        ...     level=3)]
        ['cooking-1000000.z8', 'cooking-1000001.z8']
    """
    wanted = [
        Job(path=folder / split / f"{kind}-{seed}.z8", kind=kind, seed=seed, level=level)
        for split, num in (("train", num_train), ("eval", num_eval))
        for seed in range(FIRST_SEED[split], FIRST_SEED[split] + num)
        for kind in kinds
    ]
    return [job for job in wanted if not job.path.is_file()]


def generate(job: Job) -> Path:
    """Make one game; its file appears when it is complete, after the ``.json`` beside it."""
    from textworld import GameOptions
    from textworld.generator import compile_game

    job.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=job.path.parent) as folder:
        made = Path(folder) / job.path.name
        options = GameOptions()
        options.path, options.seeds = str(made), job.seed
        # The goal, and not every step on the way to it.
        options.grammar.only_last_action = True
        compile_game(_designed(job, options), options)
        for suffix in (".json", ".z8"):
            os.replace(made.with_suffix(suffix), job.path.with_suffix(suffix))
    return job.path


def main(arguments: Sequence[str] | None = None) -> int:
    """Program entry."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(prog="python -m envs.textworld.generate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", required=True, type=Path, help="folder, as env.options.data_dir")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--train", type=_count, default=100, help="games of each kind")
    parser.add_argument("--eval", type=_count, default=20, help="games of each kind")
    parser.add_argument("--level", type=_level, default=3, help="1 (easy) to 30 (default: 3)")
    parser.add_argument("--jobs", type=_level, default=1, help="processes (default: 1)")
    given = parser.parse_args(arguments)
    todo = jobs(
        given.out, given.kinds, num_train=given.train, num_eval=given.eval, level=given.level
    )
    # A process each: TextWorld's generator of random numbers is one for all of a process.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, context, max_tasks_per_child=20) as pool:
        for number, path in enumerate(pool.map(generate, todo), start=1):
            logger.info("%d of %d: %s", number, len(todo), path)
    return 0


def _designed(job: Job, options: Any) -> Any:
    from textworld.challenges.tw_coin_collector import coin_collector
    from textworld.challenges.tw_cooking import cooking
    from textworld.challenges.tw_treasure_hunter import treasure_hunter

    if job.kind == "coin_collector":
        return coin_collector.make({"level": job.level}, options)
    if job.kind == "treasure_hunter":
        return treasure_hunter.make({"level": job.level}, options)
    num_things = min(3, (job.level + 1) // 2)
    settings = {
        "recipe": num_things,
        "take": num_things,
        "go": 1 if job.level == 1 else 6,
        "open": job.level > 1,
        "cook": True,
        "cut": job.level > 1,
        "drop": False,
        "recipe_seed": job.seed + 1,  # 0 would mean a random one
        "split": "",
    }
    return cooking.make(settings, options)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {number}")
    return number


def _level(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 30:
        raise argparse.ArgumentTypeError(f"must be from 1 to 30, got {number}")
    return number


if __name__ == "__main__":
    raise SystemExit(main())
