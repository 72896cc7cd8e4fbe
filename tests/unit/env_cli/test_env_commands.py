"""``megatron-agent env list|check|play|eval`` as a person uses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs import registry
from envs.base import TaskStart
from envs.registry import env_names, load_env
from megatron_agent import cli
from megatron_agent.env_cli.agents import make_agent
from megatron_agent.env_cli.evaluate import EvalSettings, play_tasks, summarise
from megatron_agent.env_cli.play import play
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


def test_a_check_that_fails_has_exit_code_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    import dataclasses

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
    import dataclasses

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


def test_an_environment_that_breaks_is_a_failure_of_its_episode():
    import dataclasses

    class Broken(type(load_env("frozenlake").make())):  # type: ignore[misc]
        def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Any:
            raise OSError("no ice")

    spec = dataclasses.replace(load_env("frozenlake"), make=Broken)
    agent = make_agent("random", spec, temperature=1, max_tokens=1)
    tasks = draw_tasks("frozenlake", "eval", 2)
    summary = summarise(play_tasks(spec, agent, tasks, EvalSettings(max_steps=3)))
    assert summary["failures"] == {"env_error: reset raised OSError: no ice": 2}
    assert summary["mean_steps"] == 0


def test_fixed_lists_have_splits_of_their_own(monkeypatch: pytest.MonkeyPatch):
    import dataclasses

    from megatron_agent import task_rows

    def task_list(split: str, options: Mapping[str, Any]) -> list[TaskStart]:
        return [TaskStart(name=f"m{seed}", seed=seed) for seed in range(9)]

    spec = dataclasses.replace(
        load_env("frozenlake"), task_list=task_list, splits=("train", "eval", "eval_out")
    )
    monkeypatch.setattr(task_rows, "load_env", lambda name: spec)
    chosen = draw_tasks("frozenlake", "eval_out", 4)
    assert len(chosen) == 4
    assert chosen == draw_tasks("frozenlake", "eval_out", 9)[:4]  # a larger panel holds a smaller
    assert len(draw_tasks("frozenlake", "eval_out", 100)) == 9
    assert chosen[0].task_id.startswith("frozenlake-eval_out-m")


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
