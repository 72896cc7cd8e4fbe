"""Which generated games a user has: ``SPLIT/KIND-SEED.z8``, each with a ``.json`` beside it.

Nothing here opens TextWorld.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.base import TaskStart
from envs.data import EnvDataError, find_data

NAME = "textworld"
KINDS = ("cooking", "coin_collector", "treasure_hunter")
SPLITS = ("train", "eval")
COMMAND = "python -m envs.textworld.generate --out DIR"
_SUFFIX = ".z8"


def check_data(options: Mapping[str, Any]) -> Path:
    """The data folder; raises EnvDataError unless the split or the game of ``options`` is there."""
    need = f"{options['game']}{_SUFFIX}" if options["game"] else f"{options['split']}/*{_SUFFIX}"
    return find_data(NAME, options["data_dir"], needs=(need,), command=COMMAND)


def game_path(seed: int, options: Mapping[str, Any]) -> tuple[str, Path]:
    """Name and file of the game that ``options`` name, or else of the one that ``seed`` picks.

    Raises:
        EnvDataError: it is not there.
    """
    folder = check_data(options)
    name = options["game"]
    if not name:
        names = list_games(folder, options["split"], tuple(options["kinds"]))
        name = names[seed % len(names)]
    return name, folder / f"{name}{_SUFFIX}"


def task_list(split: str, options: Mapping[str, Any]) -> Sequence[TaskStart]:
    """Every game of a split, ordered by name.

    Raises:
        ValueError: an unknown split.
        EnvDataError: the split's games are not there.
    """
    if split not in SPLITS:
        raise ValueError(f"textworld has the splits {', '.join(SPLITS)}, got {split!r}.")
    folder = check_data({**options, "split": split, "game": ""})
    return [
        TaskStart(name=name.partition("/")[2], options={"game": name})
        for name in list_games(folder, split, tuple(options["kinds"]))
    ]


@functools.lru_cache(maxsize=16)
def list_games(folder: Path, split: str, kinds: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names ``SPLIT/KIND-SEED`` of the games of a split, sorted.

    Args:
        folder: holds the splits.
        split: one of `SPLITS`.
        kinds: those wanted; all when empty.

    Raises:
        EnvDataError: none is left.
    """
    names = sorted(f"{split}/{path.stem}" for path in (folder / split).glob(f"*{_SUFFIX}"))
    chosen = tuple(name for name in names if kind_of(name) in (kinds or KINDS))
    if not chosen:
        raise EnvDataError(
            f"environment {NAME!r}: {folder / split} must hold a game of kind "
            f"{', '.join(kinds or KINDS)}, got none in {len(names)} games. Make some with: "
            f"{COMMAND}."
        )
    return chosen


def kind_of(name: str) -> str:
    """The kind of a game.

    Example:
        >>> kind_of("train/coin_collector-7")
        'coin_collector'
    """
    return name.partition("/")[2].rpartition("-")[0]
