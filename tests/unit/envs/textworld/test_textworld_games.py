"""Lists of games, what is still to be made, and the prompt; these need no TextWorld."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.base import Observation, PastStep, PromptContext
from envs.data import EnvDataError
from envs.options import resolve_options
from envs.textworld.env import OPTION_RULES, TextWorldEnv
from envs.textworld.expert import expert
from envs.textworld.games import check_data, game_path, list_games, task_list
from envs.textworld.generate import jobs, main
from envs.textworld.prompts import build_prompt, corpus

pytestmark = pytest.mark.unit

NAMES = ("train/cooking-0", "train/coin_collector-1", "eval/cooking-1000000", "eval/other-3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / f"{name}.z8"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


def options(folder: Path | str, **given: object) -> dict[str, object]:
    return resolve_options("textworld", OPTION_RULES, {"data_dir": str(folder), **given})


def test_a_split_is_its_folder_in_the_order_of_names(folder: Path) -> None:
    assert [start.name for start in task_list("train", options(folder))] == [
        "coin_collector-1",
        "cooking-0",
    ]
    (only,) = task_list("eval", options(folder))
    assert only.options == {"game": "eval/cooking-1000000"}
    with pytest.raises(ValueError, match="has the splits train, eval, got 'test'"):
        task_list("test", options(folder))


def test_kinds_can_be_chosen(folder: Path) -> None:
    assert list_games(folder, "train", ("cooking",)) == ("train/cooking-0",)
    with pytest.raises(EnvDataError, match=r"of kind coin_collector, got none in 2 games\. Make"):
        list_games(folder, "eval", ("coin_collector",))


def test_a_named_game_is_played_and_without_a_name_the_seed_picks(folder: Path) -> None:
    name, path = game_path(7, options(folder, game="train/cooking-0"))
    assert (name, path) == ("train/cooking-0", folder / "train" / "cooking-0.z8")
    assert game_path(0, options(folder))[0] == "train/coin_collector-1"
    assert game_path(5, options(folder))[0] == "train/cooking-0"


def test_missing_games_name_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGATRON_AGENT_DATA", raising=False)
    with pytest.raises(
        EnvDataError, match=r"no folder was named .* python -m envs\.textworld\.gen"
    ):
        check_data(options(""))
    with pytest.raises(EnvDataError, match=r"has no train/cooking-9\.z8"):
        check_data(options(folder, game="train/cooking-9"))


def test_only_games_that_are_not_there_are_made(folder: Path) -> None:
    todo = jobs(folder, ["cooking", "coin_collector"], num_train=2, num_eval=1, level=3)
    assert [job.path.relative_to(folder).as_posix() for job in todo] == [
        "train/coin_collector-0.z8",
        "train/cooking-1.z8",
        "eval/coin_collector-1000000.z8",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train", "-1"], "--train: must be 0 or more, got -1"),
        (["--level", "0"], "--level: must be from 1 to 30, got 0"),
        (["--kinds", "chess"], "invalid choice: 'chess'"),
    ],
)
def test_a_bad_flag_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--out", "none", *flags])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"split": "test"}, r"'split' .* one of train, eval, got 'test'\."),
        ({"kinds": "cooking"}, r"'kinds' .* a list of cooking, .*; empty for all"),
        ({"game": "../cooking-0"}, r"'game' .* a game SPLIT/KIND-SEED"),
        ({"game": "train/../../x-0"}, r"'game' .* a game SPLIT/KIND-SEED"),
    ],
)
def test_a_bad_option_names_option_rule_and_value(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_options("textworld", OPTION_RULES, given)


def test_misuse_is_the_callers_mistake() -> None:
    with pytest.raises(RuntimeError, match="no episode was started"):
        TextWorldEnv().step("look")
    with pytest.raises(TypeError, match="needs a TextWorldEnv, got object"):
        expert(object())  # type: ignore[arg-type]
    assert expert(TextWorldEnv()) == []


def test_the_prompt_tells_task_past_view_and_commands() -> None:
    observation = Observation(
        text="A hall.", anchor="x", admissible_actions=("go east", "look"), task="Find the coin."
    )
    past = PastStep(step_idx=2, observation="An attic.", action="go west")
    context = PromptContext(observation=observation, step_idx=3, max_steps=50, history=[past])
    prompt = build_prompt(context)
    assert prompt.startswith("Find the coin.\nYou act by short commands.")
    assert "possible now: go east, look." in prompt
    assert "Step 3: An attic.\nYou did: go west\nNow:\nA hall." in prompt
    assert len(list(corpus())) > 500
