"""Episodes in the tiny house and in official games; these need TextWorld."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envs.alfworld.env import AlfworldEnv
from envs.alfworld.expert import expert
from envs.alfworld.games import TASK_TYPES, list_games, task_type
from envs.checker import check_env
from envs.registry import load_env

pytestmark = pytest.mark.unit

WALKTHROUGH = (
    "go to desk 1",
    "take pen 2 from desk 1",
    "go to drawer 1",
    "open drawer 1",
    "move pen 2 to drawer 1",
)
GAME = "train/pick_and_place_simple-Pen-None-Drawer-1/trial_A"


def start(folder: Path, env: AlfworldEnv | None = None, **options: object) -> AlfworldEnv:
    env = env or AlfworldEnv()
    env.reset(seed=0, options={"data_dir": str(folder), **options})
    return env


def test_the_first_observation_tells_room_task_and_commands(tiny_house: Path):
    observation = AlfworldEnv().reset(seed=0, options={"data_dir": str(tiny_house)})
    assert observation.text == (
        "You are in the middle of a room. Looking quickly around you, you see a desk 1, and a "
        "drawer 1."
    )
    assert observation.task == "put a pen in drawer."
    assert observation.admissible_actions == ("go to desk 1", "go to drawer 1", "inventory", "look")


def test_the_walkthrough_wins(tiny_house: Path):
    env = start(tiny_house)
    assert expert(env) == list(WALKTHROUGH)
    outcomes = [env.step(action) for action in WALKTHROUGH]
    assert [outcome.reward for outcome in outcomes] == [0, 0, 0, 0, 10]
    assert outcomes[1].observation.text == "You pick up the pen 2 from the desk 1."
    assert outcomes[-1].terminated
    assert outcomes[-1].info == {
        "success": True,
        "task_type": "pick_and_place_simple",
        "game": GAME,
    }
    assert outcomes[-1].observation.admissible_actions == ()
    assert expert(env) == []
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("look")


@pytest.mark.parametrize("action", ["", "help", "fly", "GO TO DESK 1", "x" * 100_000, "\ud800"])
def test_a_refused_action_says_so_and_changes_nothing(tiny_house: Path, action: str):
    env = start(tiny_house)
    before = env.step("go to desk 1").observation
    outcome = env.step(action)
    assert not outcome.action_valid
    assert outcome.observation.text == "Nothing happens."
    assert outcome.observation.anchor == before.anchor
    assert outcome.observation.admissible_actions == before.admissible_actions


def test_an_anchor_is_the_state_and_not_the_way_there(tiny_house: Path):
    env = start(tiny_house)
    at_desk = env.step("go to desk 1").observation
    for action in ("examine desk 1", "look", "go to drawer 1", "open drawer 1"):
        env.step(action)
    again = env.step("go to desk 1").observation
    assert again.anchor == at_desk.anchor
    with_pen = env.step("take pen 2 from desk 1").observation
    assert with_pen.anchor.split("\n") == [
        "atlocation agent1, l1",
        "+ holds agent1, pen 2",
        "- inreceptacle pen 2, desk 1",
    ]
    assert env.step("move pen 2 to desk 1").observation.anchor == at_desk.anchor


def test_a_door_belongs_to_the_state_where_it_can_be_reached(tiny_house: Path):
    env = start(tiny_house)
    closed = env.step("go to drawer 1").observation.anchor
    assert "+ opened drawer 1" in env.step("open drawer 1").observation.anchor
    assert env.step("close drawer 1").observation.anchor == closed


def test_the_observation_can_be_the_anchor(tiny_house: Path):
    env = start(tiny_house, anchor="observation")
    outcome = env.step("go to drawer 1")
    assert outcome.observation.anchor == outcome.observation.text
    assert env.step("").observation.anchor == outcome.observation.text


def test_the_expert_wins_after_a_detour(tiny_house: Path):
    env = start(tiny_house)
    for action in ("go to drawer 1", "open drawer 1", "examine drawer 1", "look"):
        env.step(action)
    plan = expert(env)
    assert plan == [*WALKTHROUGH[:3], WALKTHROUGH[4]]
    assert [env.step(action).action_valid for action in plan] == [True] * 4
    assert env.done


def test_sessions_of_one_game_are_independent(tiny_house: Path):
    one, other = start(tiny_house), start(tiny_house)
    one.step("go to desk 1")
    assert "examine desk 1" not in other.admissible_actions
    other.step("go to drawer 1")
    assert one.step("take pen 2 from desk 1").action_valid


def test_an_environment_can_be_used_again_after_closing(tiny_house: Path):
    env = start(tiny_house)
    for _ in range(4):
        env.close()
        env.close()
        start(tiny_house, env, split="eval", win_reward=1)
    assert [env.step(action).reward for action in WALKTHROUGH][-1] == 1.0


def test_the_command_line_of_the_program_is_left_alone(tiny_house: Path):
    before = list(sys.argv)
    start(tiny_house).close()
    assert sys.argv == before


def test_importing_the_engine_leaves_the_global_random_state_alone(tiny_house: Path):
    program = (
        "import random, sys, numpy; from envs.alfworld.env import AlfworldEnv\n"
        "state = lambda: (random.getstate(), str(numpy.random.get_state()))\n"
        "before = state()\n"
        "AlfworldEnv().reset(seed=0, options={'data_dir': sys.argv[1]})\n"
        "sys.exit(before != state())"
    )
    subprocess.run([sys.executable, "-c", program, str(tiny_house)], check=True, timeout=120)


def test_a_file_that_is_no_game_is_named(tiny_house: Path):
    path = tiny_house / "json_2.1.1" / GAME / "game.tw-pddl"
    for content in ("not json", "{}", "[]"):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=r"trial_A/game\.tw-pddl must hold an ALFWorld game"):
            start(tiny_house, game=GAME)


def test_the_tiny_house_keeps_the_contract(tiny_house: Path):
    check_env(load_env("alfworld"), options={"data_dir": str(tiny_house)})


def test_the_expert_wins_an_official_game_of_each_type(official_games: Path):
    names = {task_type(name): name for name in list_games(official_games, "eval")}
    assert set(names) == set(TASK_TYPES)
    assert len(list_games(official_games, "eval")) == 140
    env = AlfworldEnv()
    for name in names.values():
        start(official_games, env, game=name)
        outcomes = [env.step(action) for action in expert(env)]
        assert outcomes[-1].info == {"success": True, "task_type": task_type(name), "game": name}
    env.close()
