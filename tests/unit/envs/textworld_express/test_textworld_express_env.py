"""Games on the shared Java machine; these need the extra and a Java."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envs import jvm
from envs.checker import check_determinism, check_env
from envs.nonsense_check import check_nonsense
from envs.registry import load_env
from envs.textworld_express.engine import _jar
from envs.textworld_express.env import FOLDS, GAMES, TextWorldExpressEnv
from envs.textworld_express.expert import expert

pytestmark = pytest.mark.unit

COIN = {"game": "coin", "params": {"numLocations": 4, "includeDoors": 0}}


@pytest.fixture
def env() -> Iterator[TextWorldExpressEnv]:
    made = TextWorldExpressEnv()
    yield made
    made.close()


def test_the_first_observation_tells_task_room_and_actions(env: TextWorldExpressEnv) -> None:
    observation = env.reset(seed=3, options=COIN)
    assert observation.task.startswith("Your task is to search the environment and find the coin.")
    assert observation.text.startswith("You are in the kitchen.")
    assert observation.admissible_actions == tuple(sorted(observation.admissible_actions))
    assert "look around" in observation.admissible_actions


@pytest.mark.parametrize("game", GAMES)
def test_the_expert_wins_every_kind_of_game(env: TextWorldExpressEnv, game: str) -> None:
    for seed in (0, 1, 2):
        env.reset(seed=seed, options={"game": game})
        plan = expert(env)
        outcomes = [env.step(action) for action in plan]
        assert all(outcome.action_valid for outcome in outcomes)
        assert outcomes[-1].terminated
        assert outcomes[-1].info == {"success": True, "score": 1.0, "task_type": game}
        assert sum(outcome.reward for outcome in outcomes) == pytest.approx(1.0)
        assert expert(env) == []
        with pytest.raises(RuntimeError, match="the episode is over"):
            env.step("look around")


def test_the_expert_leads_on_after_looking_and_gives_up_after_a_detour(
    env: TextWorldExpressEnv,
) -> None:
    env.reset(seed=4, options={"game": "twc"})
    plan = expert(env)
    env.step("inventory")
    assert expert(env) == plan
    moves = env.step("look around").observation.admissible_actions
    detour = next(
        action for action in moves if action.startswith("move") and action not in plan[:2]
    )
    env.step(detour)
    assert expert(env) == []
    fresh = TextWorldExpressEnv()
    fresh.reset(seed=4, options={"game": "twc"})
    fresh.step(detour)
    assert expert(fresh) == []


def test_a_mistake_can_lose_the_game(env: TextWorldExpressEnv) -> None:
    observation = env.reset(seed=1, options={"game": "arithmetic"})
    (right,) = [
        action for action in expert(env) if action.startswith("take ") and "math" not in action
    ]
    wrong = next(
        action
        for action in observation.admissible_actions
        if action.startswith("take ") and action != right and "math" not in action
    )
    env.step(wrong)
    outcome = env.step(f"put {wrong.removeprefix('take ')} in box")
    assert outcome.terminated
    assert not outcome.info["success"]
    assert outcome.observation.admissible_actions == ()


@pytest.mark.parametrize("action", ["", "fly", "TAKE COIN", "help", "x" * 100_000, "\ud800"])
def test_a_refused_action_changes_nothing(env: TextWorldExpressEnv, action: str) -> None:
    start = env.reset(seed=3, options=COIN)
    outcome = env.step(action)
    assert not outcome.action_valid
    assert outcome.observation == start


def test_an_anchor_is_what_is_in_sight_and_in_hand(env: TextWorldExpressEnv) -> None:
    start = env.reset(seed=5, options=COIN)
    away = next(action for action in start.admissible_actions if action.startswith("move "))
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[away.split()[1]]
    there = env.step(away).observation
    assert there.anchor != start.anchor
    assert env.step(f"move {back}").observation.anchor == start.anchor
    assert env.step("inventory").observation.anchor == start.anchor


def test_groups_share_one_machine_and_stay_apart() -> None:
    members = [TextWorldExpressEnv() for _ in range(8)]
    starts = {env.reset(seed=3, options=COIN).anchor for env in members}
    assert len(starts) == 1
    # Another environment's machine may be there too.
    assert len([jar for jar in jvm._RUNNING if "textworld-express" in jar.name]) == 1
    members[0].step("take coin")
    assert {env.step("look around").observation.anchor for env in members[1:]} == starts
    for env in members:
        env.close()
        env.close()


def test_splits_are_the_official_folds() -> None:
    spec = load_env("textworld_express")
    options = spec.resolve_options({"game": "coin"})
    lists = {split: spec.task_list(split, options) for split in FOLDS}  # type: ignore[misc]
    assert [len(listed) for listed in lists.values()] == [1000, 1000, 1000]
    assert lists["eval"][0].name == "coin-10000"
    assert lists["eval"][0].options == {"split": "eval"}
    assert len({start.seed for listed in lists.values() for start in listed}) == 3000
    with pytest.raises(ValueError, match="has the splits train, eval, test, got 'dev'"):
        spec.task_list("dev", options)  # type: ignore[misc]


def test_a_machine_that_died_is_started_anew(env: TextWorldExpressEnv) -> None:
    start = env.reset(seed=3, options=COIN)
    _, process = jvm._RUNNING[_jar()]
    process.kill()
    process.wait()
    from py4j.protocol import Py4JError  # as the package that is tested, not everywhere

    # Which of its errors, and with what words, depends on how far the call had come.
    with pytest.raises((Py4JError, OSError)):
        env.step("look around")
    assert env.reset(seed=3, options=COIN) == start


def test_the_machine_ends_with_its_process() -> None:
    program = (
        "from envs import jvm; from envs.textworld_express.env import TextWorldExpressEnv\n"
        "import os, signal\n"
        "TextWorldExpressEnv().reset(seed=0, options={'game': 'coin'})\n"
        "((_, process),) = jvm._RUNNING.values(); print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    ends_s = time.monotonic() + 60
    while _is_alive(pid) and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Without a parent that waits for it, it may stay as a zombie.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "sorting"}, r"'game' .* one of cookingworld, .*, got 'sorting'\."),
        ({"split": "dev"}, r"'split' .* one of train, eval, test, got 'dev'\."),
        ({"params": {"numLocations": "5"}}, r"'params' .* an object of whole numbers"),
        ({"params": {"rooms": 5}}, r"must suit the game 'cookingworld', .*\(rooms\)\.  Known"),
        (
            {"params": {"numLocations": 99}},
            r"got \{'numLocations': 99\}\. Number of locations must",
        ),
    ],
)
def test_a_bad_option_names_option_rule_and_value(
    env: TextWorldExpressEnv, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        env.reset(seed=0, options=options)


def test_misuse_is_the_callers_mistake(env: TextWorldExpressEnv) -> None:
    with pytest.raises(RuntimeError, match="no episode was started"):
        env.step("look around")
    with pytest.raises(TypeError, match="needs a TextWorldExpressEnv, got object"):
        expert(object())  # type: ignore[arg-type]
    assert expert(env) == []


def test_the_contract_is_kept() -> None:
    check_env(load_env("textworld_express"), seeds=(0,), options=COIN)


@pytest.mark.parametrize("game", GAMES)
def test_nonsense_and_neighbours_do_no_harm(game: str) -> None:
    spec = load_env("textworld_express")
    for check in (check_nonsense, check_determinism):
        check(spec, 1, {"game": game})
