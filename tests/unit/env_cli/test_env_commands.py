"""``megatron-agent env list|check|play|eval`` as a person uses them."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs import registry
from envs.base import Observation, TaskStart
from envs.options import Option, is_int
from envs.registry import env_names, load_env
from envs.spec import EnvSpec
from megatron_agent import cli
from megatron_agent.env_cli.agents import make_agent
from megatron_agent.env_cli.evaluate import EvalSettings, play_tasks, summarise
from megatron_agent.env_cli.play import play
from megatron_agent.errors import TaskError
from megatron_agent.tasks import draw_tasks

pytestmark = pytest.mark.unit


def run(*arguments: str) -> int:
    return cli.main(["env", *arguments])


def test_names_are_listed_alone(capsys: pytest.CaptureFixture[str]):
    assert run("list", "--names") == 0
    assert capsys.readouterr().out.splitlines() == list(env_names())


def test_a_check_prints_its_report(capsys: pytest.CaptureFixture[str]):
    assert run("check", "cliffwalking", "--n", "3", "--tasks", "1", "--resets", "20") == 0
    out = capsys.readouterr().out
    assert "ok       3 members of a group start equal" in out
    assert "measured anchors repeat: " in out
    assert out.endswith("cliffwalking keeps the contract.\n")


def test_a_check_of_an_environment_that_hangs_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    stuck = dataclasses.replace(load_env("frozenlake"), expert=lambda env: time.sleep(60))
    monkeypatch.setattr(registry, "load_env", lambda name: stuck)
    assert run("check", "frozenlake", "--n", "2", "--tasks", "1", "--deadline", "1") == 1
    assert "1 s" in capsys.readouterr().out


def test_a_check_that_fails_has_exit_code_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    broken = dataclasses.replace(load_env("frozenlake"), expert=lambda env: [])
    monkeypatch.setattr(registry, "load_env", lambda name: broken)
    assert run("check", "frozenlake", "--n", "2", "--tasks", "1", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["is_fine"]
    assert any("gave up on seed 0" in problem for problem in report["problems"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "frozenlak"], "no environment is named 'frozenlak'. Did you mean 'frozenlake'"),
        (["check", "gym:Pendulum-v1"], "must be Discrete or Text"),
        (["check", "frozenlake", "--n", "0"], "--n must be >= 1, got 0"),
        (["check", "frozenlake", "--option", "sise=4"], "no option 'sise'. Did you mean 'size'"),
        (["check", "frozenlake", "--option", "size"], "--option must be NAME=VALUE, got 'size'"),
        (["check", "frozenlake", "--data", "/d"], "has no option 'data_dir'"),
        (["eval", "taxi", "--policy", "best"], "--policy must be random, expert or openai:"),
        (["eval", "gym:Taxi-v4", "--policy", "expert"], "it has no expert, got 'expert'"),
        (["eval", "taxi", "--policy", "openai:x"], "--policy must be openai:BASE_URL:MODEL"),
        (
            ["eval", "taxi", "--policy", "random", "--split", "dev"],
            "must be one of train, eval",
        ),
        (["eval", "taxi", "--policy", "random", "--episodes", "0"], "--episodes must be >= 1"),
        (["eval", "taxi", "--policy", "random", "--max-steps", "0"], "--max-steps must be >= 1"),
        (["eval", "taxi", "--policy", "random", "--memory", "windw"], "Did you mean 'window'"),
        (
            ["eval", "taxi", "--policy", "random", "--history-length", "-1"],
            "an integer >= 0",
        ),
        (
            ["eval", "taxi", "--policy", "random", "--prompt-file", "no/such"],
            "--prompt-file must",
        ),
        (["eval", "openenv", "--policy", "random"], "openenv"),
        (["play", "openenv"], "openenv"),
        (["play", "gym:FrozenLake-v1", "--option", "kwargs={foo: 1}"], "'kwargs'"),
        (["play", "gym:FrozenLake-v1", "--option", "kwargs={map_name: foo}"], "must suit it"),
    ],
)
def test_a_mistake_has_exit_code_two_and_one_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("megatron-agent: ")
    assert printed.out == ""


def test_data_of_the_evaluated_split_are_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    asked: list[Mapping[str, Any]] = []
    listed = dataclasses.replace(
        load_env("frozenlake"),
        task_list=lambda split, options: [TaskStart(name="a", seed=3, options={"size": 5})],
        check_data=asked.append,
    )
    monkeypatch.setattr(registry, "load_env", lambda name: listed)
    monkeypatch.setattr("megatron_agent.tasks.load_spec", lambda name, where: listed)
    assert run("eval", "frozenlake", "--policy", "random", "--episodes", "1") == 0
    assert asked[0]["size"] == 5  # the task's own option: which game, which split


def test_the_expert_is_evaluated_with_the_limit_of_its_configuration(
    capsys: pytest.CaptureFixture[str],
):
    assert run("eval", "taxi", "--policy", "expert", "--episodes", "10") == 0
    out = capsys.readouterr().out
    assert out.startswith("taxi, split eval, expert\nsuccess  1.000 [0.72, 1.00]  (10 of 10 epis")
    assert "valid    1.000 of the actions" in out


def test_equal_arguments_give_equal_evaluations(capsys: pytest.CaptureFixture[str]):
    command = ["eval", "frozenlake", "--policy", "random", "--episodes", "5", "--json"]
    assert run(*command) == run(*command) == 0
    first, second = capsys.readouterr().out.split("}\n{")
    assert json.loads(first + "}") == json.loads("{" + second)


def test_memory_and_prompt_file_reach_the_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    prompts: list[str] = []

    class Listener:
        async def respond(self, moment: Any) -> str:
            prompts.append(moment.prompt)
            return "<memory>wet feet</memory><think></think><action>left</action>"

    from megatron_agent.env_cli import agents

    monkeypatch.setattr(agents, "make_agent", lambda *_, **__: Listener())
    (tmp_path / "p.txt").write_text("[{history_length}]")
    arguments = ["--policy", "x", "--episodes", "1", "--max-steps", "2", "--history-length", "1"]
    files = ["--prompt-file", str(tmp_path / "p.txt"), "--memory", "summary_slot"]
    assert run("eval", "frozenlake", *arguments, *files) == 0
    assert prompts[0].startswith("Your notes: none yet\n")
    assert prompts[0].endswith("\n\n[0]")
    assert prompts[1].startswith("Your notes: wet feet\n")
    assert prompts[1].endswith("\n\n[1]")


def test_figures_are_told_by_task_type_too():
    spec = load_env("frozenlake")
    tasks = draw_tasks("frozenlake", "eval", 4)
    episodes = play_tasks(
        spec, make_agent("expert", spec, temperature=1, max_tokens=1), tasks,
        EvalSettings(max_steps=20),
    )  # fmt: skip
    kinds = ["easy", "hard", "easy", "easy"]
    typed = [
        dataclasses.replace(
            episode,
            turns_T=(
                *episode.turns_T[:-1],
                dataclasses.replace(episode.turns_T[-1], info={"task_type": kind}),
            ),
        )
        for episode, kind in zip(episodes, kinds, strict=True)
    ]
    by_type = summarise(typed)["by_task_type"]
    assert {kind: part["num_episodes"] for kind, part in by_type.items()} == {"easy": 3, "hard": 1}
    assert by_type["hard"]["success_rate"] == 1.0


def _raise(error: BaseException) -> Any:
    raise error


LAKE = type(load_env("frozenlake").make())


@pytest.mark.parametrize(
    ("method", "broken", "failure"),
    [
        ("__init__", lambda self: _raise(OSError("no ice")), "reset raised OSError: no ice"),
        ("reset", lambda self, **_: _raise(OSError("no ice")), "reset raised OSError: no ice"),
        ("reset", lambda self, **_: _raise(SystemExit(3)), "reset raised SystemExit: 3"),
        (
            "reset",
            lambda self, **_: (Observation(text="ice", anchor=0), {}),
            "reset raised TypeError: reset() must give an Observation, got tuple",
        ),
        ("step", lambda self, action: _raise(OSError("no ice")), "step raised OSError: no ice"),
        (
            "step",
            lambda self, action: (Observation(text="ice", anchor=0), 0.0, False, False, {}),
            "step raised TypeError: step() must return a StepOutcome, got tuple",
        ),
    ],
)
def test_an_environment_that_breaks_is_a_failure_of_its_episode(
    method: str, broken: Any, failure: str
):
    summary = _evaluated(type("Broken", (LAKE,), {method: broken}))
    ((found, count),) = summary["failures"].items()
    assert found.startswith(f"env_error: {failure}")
    assert count == 2
    assert summary["mean_steps"] == (method == "step")


def test_an_environment_that_cannot_be_closed_was_played(caplog: pytest.LogCaptureFixture):
    broken = {"close": lambda self: self._gym and _raise(OSError("frozen"))}
    summary = _evaluated(type("Broken", (LAKE,), broken))
    assert summary["failures"] == {}
    assert "close raised OSError: frozen" in caplog.text


def _evaluated(make: Any) -> dict[str, Any]:
    spec = dataclasses.replace(load_env("frozenlake"), make=make)
    agent = make_agent("random", spec, temperature=1, max_tokens=1)
    tasks = draw_tasks("frozenlake", "eval", 2)
    return summarise(play_tasks(spec, agent, tasks, EvalSettings(max_steps=3)))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> EnvSpec:
    """An environment with nine tasks in each of three splits."""
    from megatron_agent import task_rows

    def task_list(split: str, options: Mapping[str, Any]) -> list[TaskStart]:
        names = [f"{split}/m{number}" for number in range(9)]
        return [TaskStart(name=name, options={"map": name}) for name in names]

    rules = {
        "map": Option(default="", rule="a map", allows=lambda value: isinstance(value, str)),
        "size": Option(default=4, rule="a size", allows=is_int),
    }
    spec = dataclasses.replace(
        load_env("frozenlake"),
        task_list=task_list,
        splits=("train", "eval", "eval_out"),
        option_rules=rules,
    )
    monkeypatch.setattr(task_rows, "load_env", lambda name: spec)
    return spec


def test_a_task_that_an_option_names_is_the_one_that_is_played(listed: EnvSpec):
    options = {"map": "eval/m5", "size": 5}
    (task,) = draw_tasks("frozenlake", "eval", 100, 0, options)
    assert task.task_id == "frozenlake-eval-eval/m5"
    assert task.options == options
    (start,) = listed.starts("eval", 3, options)
    assert start.options == options
    assert len(draw_tasks("frozenlake", "eval", 100, 0, {"map": ""})) == 9
    assert len(listed.starts("eval", 3, {"map": "", "size": 5})) == 3


@pytest.mark.parametrize("name", ["nosuch", "eval/m5"])
def test_a_named_task_that_is_not_in_the_split_is_refused(listed: EnvSpec, name: str):
    with pytest.raises(TaskError, match=rf"split 'train' has no task with \{{'map': '{name}'\}}.*"
                       r"another split of train, eval, eval_out"):  # fmt: skip
        draw_tasks("frozenlake", "train", 1, 0, {"map": name})
    with pytest.raises(ValueError, match="has no task with"):
        listed.starts("train", 1, {"map": name})


def test_an_evaluation_in_which_every_episode_failed_has_exit_code_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    helpless = dataclasses.replace(load_env("frozenlake"), expert=lambda env: [])
    monkeypatch.setattr(registry, "load_env", lambda name: helpless)
    assert run("eval", "frozenlake", "--policy", "expert", "--episodes", "2") == 1
    assert "failed   2 x generation_error: the agent gave up." in capsys.readouterr().out


def test_fixed_lists_have_splits_of_their_own(listed: EnvSpec):
    chosen = draw_tasks("frozenlake", "eval_out", 4)
    assert len(chosen) == 4
    assert chosen == draw_tasks("frozenlake", "eval_out", 9)[:4]  # a larger panel holds a smaller
    assert len(draw_tasks("frozenlake", "eval_out", 100)) == 9
    assert chosen[0].task_id.startswith("frozenlake-eval_out-eval_out/m")


class Terminal:
    """Types lines, keeps what was said."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.said = list(lines), [""]

    def ask(self, prompt: str) -> str:
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)

    def say(self, text: str) -> None:
        self.said.append(text)


def played(name: str, *lines: str) -> tuple[float, str]:
    terminal = Terminal(*lines)
    (task,) = draw_tasks(name, "train", 1)
    total = play(load_env(name), task, ask=terminal.ask, say=terminal.say)
    return total, "\n".join(terminal.said)


def test_a_person_plays_with_words_numbers_and_advice():
    total, said = played("cliffwalking", "?", "1", "right", "fly", "99", "quit")
    assert total <= -2
    assert "Task: Walk along the cliff" in said
    assert "1 up  2 right  3 down  4 left" in said
    assert "The expert would say: " in said
    assert said.count("That is not legal here.") == 2
    assert "Reward -" in said
    assert f"You left after 4 steps with a return of {total:g}." in said


def test_the_end_of_the_input_leaves_the_game():
    assert "You left after 0 steps" in played("gym:FrozenLake-v1", "?")[1]
    assert "No expert knows" in played("gym:FrozenLake-v1", "?")[1]


def test_a_game_that_is_over_says_how_it_went():
    total, said = played("blackjack", "stick")
    assert "after 1 steps with a return of" in said
    assert ("You did it" in said) == (total > 0)


def test_play_is_a_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("builtins.input", lambda prompt: "quit")
    assert run("play", "taxi", "--seed", "3") == 0
    assert "You left after 0 steps" in capsys.readouterr().out


def test_play_needs_a_task(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("megatron_agent.tasks.draw_tasks", lambda *_: [])
    assert run("play", "taxi") == 2
    assert "environment 'taxi' has no task in split 'train'" in capsys.readouterr().err
