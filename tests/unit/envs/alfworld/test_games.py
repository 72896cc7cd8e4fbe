"""Lists of games, the walkthrough, options and prompts: what works without TextWorld."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envs.alfworld.actions import project
from envs.alfworld.env import OPTION_RULES, AlfworldEnv
from envs.alfworld.expert import expert
from envs.alfworld.games import check_data, game_path, list_games, task_list, task_type
from envs.alfworld.prompts import build_prompt, corpus
from envs.alfworld.walkthrough import WalkthroughGuide
from envs.base import Observation, PastStep, PromptContext
from envs.data import EnvDataError
from envs.options import resolve_options
from envs.tags import format_response

pytestmark = pytest.mark.unit

MakeGames = Callable[..., Path]
PEN = "pick_and_place_simple-Pen-None-Drawer-1"
LAMP = "look_at_obj_in_light-Book-None-DeskLamp-1"


def options(folder: Path | str, **given: object) -> dict[str, object]:
    return resolve_options("alfworld", OPTION_RULES, {"data_dir": str(folder), **given})


@pytest.fixture
def folder(make_games: MakeGames) -> Path:
    return make_games(
        **{
            f"train__{PEN}__trial_2": {},
            f"train__{PEN}__trial_1": {},
            f"train__{LAMP}__trial_1": {},
            f"train__{PEN}__trial_3": {"solvable": False},
            "train__pick_and_place_with_movable_recep-Pen-Mug-Desk-1__trial_1": {},
            "train__pick_and_place_simple-AppleSliced-None-Fridge-1__trial_1": {},
            f"valid_seen__{PEN}__trial_9": {},
        }
    )


def test_a_list_is_sorted_and_leaves_out_what_cannot_be_played(folder: Path):
    assert list_games(folder, "train") == (
        f"train/{LAMP}/trial_1",
        f"train/{PEN}/trial_1",
        f"train/{PEN}/trial_2",
    )
    assert list_games(folder, "eval") == (f"valid_seen/{PEN}/trial_9",)


def test_a_task_is_a_game_and_keeps_its_name(folder: Path):
    starts = task_list("train", options(folder))
    assert [start.name for start in starts] == [
        f"{LAMP}-trial_1",
        f"{PEN}-trial_1",
        f"{PEN}-trial_2",
    ]
    assert starts[0].options == {"game": f"train/{LAMP}/trial_1"}
    assert starts[0].seed == 0


def test_task_types_choose(folder: Path):
    chosen = task_list("train", options(folder, task_types=["look_at_obj_in_light"]))
    assert [task_type(str(start.options["game"])) for start in chosen] == ["look_at_obj_in_light"]
    with pytest.raises(EnvDataError, match=r"playable game of type pick_heat.*none in 1 games"):
        task_list("eval", options(folder, task_types=["pick_heat_then_place_in_recep"]))


def test_a_named_game_is_played_and_without_a_name_the_seed_picks(folder: Path):
    name = f"train/{PEN}/trial_2"
    assert game_path(7, options(folder, game=name))[0] == name
    assert game_path(0, options(folder))[0] == f"train/{LAMP}/trial_1"
    assert game_path(5, options(folder))[0] == name
    assert game_path(5, options(folder, split="eval"))[1].is_file()


def test_missing_games_name_places_and_command(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(EnvDataError, match=r"valid_unseen.*Get them with: alfworld-download"):
        task_list("eval_out", options(folder))
    with pytest.raises(EnvDataError, match=r"has no json_2\.1\.1/train/none/x/game\.tw-pddl"):
        check_data(options(folder, game="train/none/x"))
    with pytest.raises(ValueError, match=r"split must be one of train, eval, eval_out, got 'test'"):
        task_list("test", options(folder))


def test_games_are_found_where_the_official_command_puts_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MEGATRON_AGENT_DATA", raising=False)
    monkeypatch.setenv("ALFWORLD_DATA", str(folder))
    assert check_data(options("")) == folder
    monkeypatch.delenv("ALFWORLD_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(EnvDataError, match="no folder was named"):
        check_data(options(""))
    cache = tmp_path / "home" / ".cache"
    cache.mkdir(parents=True)
    (cache / "alfworld").symlink_to(folder)
    assert check_data(options("")) == cache / "alfworld"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"split": "test"}, r"'split' .* must be one of train, eval, eval_out, got 'test'\."),
        ({"task_types": ["cook"]}, r"'task_types' .* a list of pick_and_place_simple, .*'cook'"),
        ({"task_types": "all"}, r"'task_types' .* got 'all'\."),
        ({"game": "../x/y"}, r"'game' .* a folder SPLIT/TASK/TRIAL below json_2\.1\.1"),
        ({"game": "/a/b"}, r"'game' .* got '/a/b'\."),
        ({"anchor": "prompt"}, r"'anchor' .* 'state' .* or 'observation'"),
        ({"win_reward": 0}, r"'win_reward' .* must be a number above 0, got 0\."),
        ({"data_dir": 1}, r"'data_dir' .* must be a folder"),
    ],
)
def test_a_bad_option_names_option_rule_and_value(given: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        resolve_options("alfworld", OPTION_RULES, given)


def guide_after(*commands: str) -> WalkthroughGuide:
    guide = WalkthroughGuide(WALKTHROUGH)
    for command in commands:
        guide.note(command)
    return guide


WALKTHROUGH = ("go to desk 1", "take pen 1 from desk 1", "go to drawer 1", "open drawer 1", "end")


@pytest.mark.parametrize(
    ("commands", "rest"),
    [
        ((), WALKTHROUGH),
        (("look", "inventory", "examine desk 1"), WALKTHROUGH),
        (("go to bed 1",), WALKTHROUGH),
        (WALKTHROUGH[:2], WALKTHROUGH[2:]),
        (("go to desk 1", "go to bed 1"), ("go to desk 1", *WALKTHROUGH[1:])),
        (("go to desk 1", "go to bed 1", "go to desk 1"), WALKTHROUGH[1:]),
        ((*WALKTHROUGH[:2], "go to bed 1"), WALKTHROUGH[2:]),
        ((*WALKTHROUGH[:2], "go to bed 1", "go to drawer 1"), WALKTHROUGH[3:]),
        (("go to drawer 1", "open drawer 1"), (*WALKTHROUGH[:3], "end")),
        (("go to desk 1", "take mug 1 from desk 1"), ()),
        (WALKTHROUGH, ()),
    ],
)
def test_the_guide_leads_back_or_says_nothing(commands: tuple[str, ...], rest: tuple[str, ...]):
    everywhere = {"go to desk 1", "go to drawer 1"}
    here = {command for command in commands if command.startswith("go to ")}
    last = [command for command in commands if command in here][-1:]
    assert guide_after(*commands).plan(everywhere - set(last)) == list(rest)


def test_no_walkthrough_is_no_advice():
    guide = WalkthroughGuide(())
    guide.note("go to desk 1")
    assert guide.plan(["look"]) == []


def test_misuse_is_the_callers_mistake():
    with pytest.raises(RuntimeError, match="no episode was started"):
        AlfworldEnv().step("look")
    with pytest.raises(TypeError, match="needs an AlfworldEnv, got object"):
        expert(object())  # type: ignore[arg-type]
    assert expert(AlfworldEnv()) == []


PROMPT = """\
You are in a house and act by short commands. Your task: put a pen in drawer.
You have made 3 steps. The last 1:
Step 3: A room.
You did: go to desk 1
Step 4 of at most 50. What you see now:
You arrive at desk 1.
Commands that are possible now: look, take pen 1 from desk 1
Think about what to do next in <think>...</think>, then give one of these commands in \
<action>...</action>."""


def test_the_prompt_tells_task_past_view_and_commands():
    observation = Observation(
        text="You arrive at desk 1.",
        anchor="x",
        admissible_actions=("look", "take pen 1 from desk 1"),
        task="put a pen in drawer.",
    )
    past = PastStep(step_idx=2, observation="A room.", action="go to desk 1")
    context = PromptContext(observation=observation, step_idx=3, max_steps=50, history=[past])
    assert build_prompt(context) == PROMPT
    first = PromptContext(observation=observation, step_idx=0, max_steps=50, history=[])
    assert "The last" not in build_prompt(first)


def test_responses_are_read_back_whatever_their_case():
    admissible = ("go to desk 1", "look")
    assert project(format_response("Go To Desk 1"), admissible).action == "go to desk 1"
    assert project(format_response("go to desk 2"), admissible).reason == "not_admissible"


def test_the_corpus_needs_no_data():
    texts = list(corpus())
    assert len(texts) > 500
    assert "<think></think><action>heat apple 1 with microwave 1</action>" in texts
