"""A tiny house, written for these tests on the rules that the installed package alfworld brings."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

PROBLEM = """
(define (problem tiny) (:domain alfred)
(:objects
  agent1 - agent
  l0 l1 l2 - location
  Desk_bar_1 Drawer_bar_1 - receptacle
  DeskType DrawerType - rtype
  Pen_bar_1 Pen_bar_2 Mug_bar_1 - object
  PenType MugType - otype)
(:init
  (receptacleType Desk_bar_1 DeskType) (receptacleType Drawer_bar_1 DrawerType)
  (objectType Pen_bar_1 PenType) (objectType Pen_bar_2 PenType) (objectType Mug_bar_1 MugType)
  (canContain DeskType PenType) (canContain DeskType MugType) (canContain DrawerType PenType)
  (pickupable Pen_bar_1) (pickupable Pen_bar_2) (pickupable Mug_bar_1)
  (openable Drawer_bar_1)
  (atLocation agent1 l0)
  (receptacleAtLocation Desk_bar_1 l1) (receptacleAtLocation Drawer_bar_1 l2)
  (inReceptacle Pen_bar_1 Desk_bar_1) (objectAtLocation Pen_bar_1 l1)
  (inReceptacle Mug_bar_1 Desk_bar_1) (objectAtLocation Mug_bar_1 l1)
  (inReceptacle Pen_bar_2 Drawer_bar_1) (objectAtLocation Pen_bar_2 l2))
(:goal (and (exists (?o - object) (exists (?r - receptacle)
  (and (inReceptacle ?o ?r) (receptacleType ?r DrawerType) (not (= ?o Pen_bar_2))))))))
"""

WALKTHROUGH = (
    "go to desk 1",
    "take pen 2 from desk 1",
    "go to drawer 1",
    "open drawer 1",
    "move pen 2 to drawer 1",
)

MakeGames = Callable[..., Path]


@pytest.fixture
def make_games(tmp_path: Path) -> MakeGames:
    """A function that writes files laid out like the official ones: folder name to what is in it
    besides ``"solvable": true``; returns the data folder.
    """

    def make(**games: dict[str, object]) -> Path:
        for name, content in games.items():
            folder = tmp_path / "json_2.1.1" / name.replace("__", "/")
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"solvable": True} | content)
            (folder / "game.tw-pddl").write_text(text, encoding="utf-8")
        return tmp_path

    return make


@pytest.fixture
def tiny_house(make_games: MakeGames) -> Path:
    """Data folder with three training games and an evaluation game, all in the tiny house."""
    import alfworld.info as info

    grammar = Path(info.ALFRED_TWL2_PATH).read_text(encoding="utf-8")
    game = {
        "pddl_domain": Path(info.ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": grammar.replace("UNKNOWN GOAL", "put a pen in drawer"),
        "pddl_problem": PROBLEM,
        "walkthrough": list(WALKTHROUGH),
    }
    folder = "{}__pick_and_place_simple-Pen-None-Drawer-1__trial_{}"
    names = [folder.format("train", trial) for trial in ("A", "B", "C")]
    return make_games(**dict.fromkeys([*names, folder.format("valid_seen", "D")], game))


@pytest.fixture(scope="session")
def official_games(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with the official games of the split valid_seen."""
    archive = shared_data / "alfworld_json_2.1.1_valid_seen140.tar.xz"
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder
