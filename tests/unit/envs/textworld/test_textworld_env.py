"""Games that were made and are played here; these need the extra."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envs.checker import check_env
from envs.registry import load_env
from envs.textworld.engine import Game
from envs.textworld.env import TextWorldEnv
from envs.textworld.expert import expert
from envs.textworld.generate import main

pytestmark = pytest.mark.unit

HUNT = "train/treasure_hunter-0"
MEAL = "train/cooking-0"


@pytest.fixture
def env() -> Iterator[TextWorldEnv]:
    made = TextWorldEnv()
    yield made
    made.close()
    made.close()


def options(folder: Path, game: str) -> dict[str, str]:
    return {"data_dir": str(folder), "game": game}


@pytest.mark.parametrize("game", [HUNT, MEAL])
def test_the_expert_wins(env: TextWorldEnv, textworld_games: Path, game: str) -> None:
    start = env.reset(seed=0, options=options(textworld_games, game))
    assert start.task
    assert start.text.startswith("-= ")
    plan = expert(env)
    outcomes = [env.step(action) for action in plan]
    assert all(outcome.action_valid for outcome in outcomes)
    assert sum(outcome.reward for outcome in outcomes) == pytest.approx(1.0)
    assert outcomes[-1].terminated
    assert outcomes[-1].info["success"]
    assert outcomes[-1].info["game"] == game
    assert outcomes[-1].observation.admissible_actions == ()
    assert expert(env) == []
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("look")


def test_the_status_line_with_its_move_counter_is_not_shown(
    env: TextWorldEnv, textworld_games: Path
) -> None:
    start = env.reset(seed=0, options=options(textworld_games, MEAL))
    first, second = env.step("look").observation, env.step("look").observation
    assert first.text == second.text
    assert ">" not in first.text
    assert first.anchor == second.anchor == start.anchor
    assert env.step("inventory").observation.anchor == start.anchor


def test_the_expert_knows_the_way_back_from_a_detour(
    env: TextWorldEnv, textworld_games: Path
) -> None:
    start = env.reset(seed=0, options=options(textworld_games, MEAL))
    others = [c for c in start.admissible_actions if c.startswith(("take ", "open ", "go "))]
    env.step(next(command for command in others if command != expert(env)[0]))
    outcomes = [env.step(action) for action in expert(env)]
    assert outcomes[-1].info["success"]


@pytest.mark.parametrize("action", ["", "fly", "LOOK", "quit", "x" * 100_000, "\ud800"])
def test_a_refused_action_changes_nothing(
    env: TextWorldEnv, textworld_games: Path, action: str
) -> None:
    start = env.reset(seed=0, options=options(textworld_games, HUNT))
    outcome = env.step(action)
    assert not outcome.action_valid
    assert outcome.observation == start


def test_a_file_that_is_no_game_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train" / "cooking-0.z8"
    path.parent.mkdir()
    path.write_bytes(b"no game")
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(ValueError, match=r"cooking-0\.z8 must hold a game, .*Generate it again"):
        Game(path)


def test_games_that_are_there_are_left_alone(textworld_games: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in textworld_games.rglob("*")}
    flags = ["--kinds", "treasure_hunter", "cooking", "--train", "1", "--eval", "1"]
    assert main(["--out", str(textworld_games), *flags]) == 0
    assert {path: path.stat().st_mtime_ns for path in textworld_games.rglob("*")} == before
    assert {path.suffix for path in (textworld_games / "train").iterdir()} == {".z8", ".json"}


def test_the_contract_is_kept(textworld_games: Path) -> None:
    given = {"data_dir": str(textworld_games), "kinds": ["treasure_hunter"]}
    check_env(load_env("textworld"), seeds=(0,), options=given)
