"""Which ALFWorld games a user has: the official folders, and fixed lists of the games in them.

The layout is the official one, ``json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl``; the name of TASK
begins with the task's type. Nothing here opens TextWorld.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from envs.base import TaskStart
from envs.data import EnvDataError, find_data

NAME = "alfworld"
ROOT = "json_2.1.1"
GAME_FILE = "game.tw-pddl"
DOWNLOAD_COMMAND = "alfworld-download"
"""Comes with the package alfworld; it writes to $ALFWORLD_DATA, by default to ~/.cache/alfworld."""
_DEFAULT_FOLDER = "~/.cache/alfworld"

SPLIT_FOLDERS: Mapping[str, str] = {
    "train": "train",
    "eval": "valid_seen",
    "eval_out": "valid_unseen",
}
"""Our split to the official folder: ``eval`` are new tasks in known rooms, ``eval_out`` in unknown
ones."""

TASK_TYPES: tuple[str, ...] = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# Tasks with movable receptacles and with slices are not playable as text; the official code leaves
# them out too.
_NOT_PLAYABLE = ("movable", "Sliced")
_UNSOLVABLE = re.compile(rb'"solvable"\s*:\s*false')
_TAIL_BYTES = 4096


def data_folder(options: Mapping[str, Any], *needs: str) -> Path:
    """The folder that holds `ROOT` with all of ``needs`` below it.

    Raises:
        EnvDataError: no place holds them; the message names the places and `DOWNLOAD_COMMAND`.
    """
    wanted = [f"{ROOT}/{need}" for need in needs]
    look = functools.partial(find_data, NAME, needs=wanted, command=DOWNLOAD_COMMAND)
    try:
        return look(given=options["data_dir"], variables=("ALFWORLD_DATA",), subfolder=NAME)
    except EnvDataError:
        default = Path(_DEFAULT_FOLDER).expanduser()
        if options["data_dir"] or os.environ.get("ALFWORLD_DATA") or not default.is_dir():
            raise
        return look(given=str(default))


def check_data(options: Mapping[str, Any]) -> Path:
    """The data folder; raises EnvDataError unless the split or the game of ``options`` is there."""
    if options["game"]:
        return data_folder(options, f"{options['game']}/{GAME_FILE}")
    return data_folder(options, f"{SPLIT_FOLDERS[options['split']]}/*/*/{GAME_FILE}")


def game_path(seed: int, options: Mapping[str, Any]) -> tuple[str, Path]:
    """Name and file of the game that ``options`` name, or else of the one that ``seed`` picks.

    Raises:
        EnvDataError: it is not there.
    """
    folder = check_data(options)
    name = options["game"]
    if not name:
        names = list_games(folder, options["split"], tuple(options["task_types"]))
        name = names[seed % len(names)]
    return name, folder / ROOT / name / GAME_FILE


def task_type(name: str) -> str:
    """The type of a game, the beginning of its folder's name.

    Example:
        >>> task_type("train/pick_and_place_simple-Book-None-Bed-306/trial_T1")
        'pick_and_place_simple'
    """
    return PurePosixPath(name).parts[-2].split("-", 1)[0]


def task_list(split: str, options: Mapping[str, Any]) -> Sequence[TaskStart]:
    """Every game of a split, ordered by name: a fixed panel, however it is cut into batches.

    Raises:
        ValueError: an unknown split.
        EnvDataError: the split's games are not there.
    """
    if split not in SPLIT_FOLDERS:
        raise ValueError(f"split must be one of {', '.join(SPLIT_FOLDERS)}, got {split!r}.")
    folder = data_folder(options, f"{SPLIT_FOLDERS[split]}/*/*/{GAME_FILE}")
    return [
        TaskStart(name="-".join(PurePosixPath(name).parts[1:]), options={"game": name})
        for name in list_games(folder, split, tuple(options["task_types"]))
    ]


@functools.lru_cache(maxsize=16)
def list_games(folder: Path, split: str, task_types: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names of the playable games of a split, sorted.

    Args:
        folder: holds `ROOT`.
        split: a key of `SPLIT_FOLDERS`.
        task_types: those wanted; all when empty.

    Raises:
        EnvDataError: none is left.
    """
    root = folder / ROOT
    names = sorted(
        path.parent.relative_to(root).as_posix()
        for path in root.glob(f"{SPLIT_FOLDERS[split]}/*/*/{GAME_FILE}")
    )
    wanted = task_types or TASK_TYPES
    chosen = tuple(
        name
        for name in names
        if task_type(name) in wanted
        and not any(part in name for part in _NOT_PLAYABLE)
        and not _is_marked_unsolvable(root / name / GAME_FILE)
    )
    if not chosen:
        raise EnvDataError(
            f"environment {NAME!r}: {root / SPLIT_FOLDERS[split]} must hold a playable game of "
            f"type {', '.join(wanted)}, got none in {len(names)} games. Get them with: "
            f"{DOWNLOAD_COMMAND}; or ask for other task_types."
        )
    return chosen


def _is_marked_unsolvable(path: Path) -> bool:
    """Whether the file says so; its mark stands at the end, and the files are large."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return _UNSOLVABLE.search(file.read()) is not None
