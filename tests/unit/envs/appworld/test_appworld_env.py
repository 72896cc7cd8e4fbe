"""Episodes with a stand-in for the package, and what goes wrong with its process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.appworld.actions import project
from envs.appworld.env import OPTION_RULES, AppWorldEnv
from envs.appworld.process import AppWorldError
from envs.appworld.prompts import build_prompt
from envs.appworld.tasks import check_data, task_list
from envs.base import PastStep, PromptContext
from envs.checker import check_env
from envs.data import EnvDataError
from envs.options import resolve_options
from envs.registry import load_env

pytestmark = pytest.mark.unit


@pytest.fixture
def options(appworld_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for variable in ("APPWORLD_PYTHON", "APPWORLD_ROOT", "MEGATRON_AGENT_DATA"):
        monkeypatch.delenv(variable, raising=False)
    return {**appworld_options, "task_id": "a1_1"}


@pytest.fixture
def env() -> Iterator[AppWorldEnv]:
    made = AppWorldEnv()
    yield made
    made.close()
    made.close()


def test_a_task_is_done_by_code(env: AppWorldEnv, options: dict[str, Any]) -> None:
    start = env.reset(seed=0, options=options)
    assert start.task == (
        "What is in the vault?\nYou act for Ada Byron (ada@mail.com, 555). It is 2023-05-18 12:00."
    )
    outcome = env.step("x = apis.vault.show()\nprint(x)")
    assert outcome.observation.text == "7"
    assert not outcome.terminated
    outcome = env.step("apis.supervisor.complete_task(answer=x)")
    assert (outcome.reward, outcome.terminated) == (1.0, True)
    assert outcome.info == {"success": True, "task_id": "a1_1", "tests_passed": 2, "num_tests": 2}
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("print(1)")


def test_a_wrong_answer_ends_the_episode_without_a_reward(
    env: AppWorldEnv, options: dict[str, Any]
) -> None:
    env.reset(seed=0, options=options)
    outcome = env.step("apis.supervisor.complete_task(answer=0)")
    assert (outcome.reward, outcome.terminated) == (0.0, True)
    assert outcome.info["tests_passed"] == 1


def test_code_that_fails_is_shown_and_the_shell_keeps_its_variables(
    env: AppWorldEnv, options: dict[str, Any]
) -> None:
    env.reset(seed=0, options=options)
    outcome = env.step("x = 5\n1 / 0")
    assert outcome.action_valid
    assert "ZeroDivisionError" in outcome.observation.text
    assert env.step("print(x)").observation.text == "5"
    assert env.step("pass").observation.text == "Execution successful."
    assert env.step("print('y' * 9000)").observation.text.endswith("... (9000 characters in all)")


def test_code_cannot_reach_the_requests_or_the_answers(
    env: AppWorldEnv, options: dict[str, Any]
) -> None:
    env.reset(seed=0, options=options)
    code = "import os, sys\nos.write(1, b'{}\\n')\nprint(repr(sys.stdin.read()))"
    assert env.step(code).observation.text == "''"
    assert env.step("print(3)").observation.text == "3"


@pytest.mark.parametrize("action", ["", " ", "x" * 100_000, "\ud800"])
def test_what_is_no_code_changes_nothing(
    env: AppWorldEnv, options: dict[str, Any], action: str
) -> None:
    start = env.reset(seed=0, options=options)
    outcome = env.step(action)
    assert not outcome.action_valid
    assert outcome.observation == start


def test_an_anchor_is_what_was_run_and_seen(env: AppWorldEnv, options: dict[str, Any]) -> None:
    other = AppWorldEnv()
    assert env.reset(seed=0, options=options) == other.reset(seed=0, options=options)
    same = env.step("x = 1").observation.anchor
    assert other.step("x = 1").observation.anchor == same
    assert other.step("x = 2").observation.anchor != env.step("x = 3").observation.anchor
    other.close()


def test_a_process_that_ends_fails_the_episode_and_the_next_reset_works(
    env: AppWorldEnv, options: dict[str, Any]
) -> None:
    env.reset(seed=0, options=options)
    with pytest.raises(AppWorldError, match=r"ended \(exit status 3\)"):
        env.step("apis.fault.end()")
    with pytest.raises(RuntimeError, match="no episode was started"):
        env.step("print(1)")
    assert env.reset(seed=0, options=options).text == "Nothing was run yet."


def test_a_process_that_is_too_slow_is_ended(env: AppWorldEnv, options: dict[str, Any]) -> None:
    env.reset(seed=0, options=options)
    env._options = {**options, "deadline_s": 0.5}
    with pytest.raises(AppWorldError, match=r"within 0.5 s\. Raise env\.options\.deadline_s"):
        env.step("apis.fault.sleep()")


def test_a_task_that_is_not_there_is_named(env: AppWorldEnv, options: dict[str, Any]) -> None:
    with pytest.raises(AppWorldError, match=r"open failed with Exception: The task z9_9 doesn't"):
        env.reset(seed=0, options={**options, "task_id": "z9_9"})


def test_lists_are_the_official_ones(options: dict[str, Any]) -> None:
    given = resolve_options("appworld", OPTION_RULES, options)
    assert [start.name for start in task_list("train", given)] == ["a1_1", "a1_2"]
    (only,) = task_list("eval", given)
    assert only.options == {"split": "eval", "task_id": "b2_1"}
    with pytest.raises(ValueError, match=r"has the splits train, eval, test_normal, .* got 'dev'"):
        task_list("dev", given)
    with pytest.raises(EnvDataError, match=r"has no data/datasets/test_normal\.txt.*Get them with"):
        task_list("test_normal", given)
    empty = Path(options["data_dir"]) / "data" / "datasets" / "test_challenge.txt"
    empty.touch()
    with pytest.raises(EnvDataError, match="must name at least one task, got none"):
        task_list("test_challenge", given)
    empty.unlink()


def test_without_a_task_the_seed_picks_one(env: AppWorldEnv, options: dict[str, Any]) -> None:
    env.reset(seed=3, options={**options, "task_id": ""})
    assert env.step("").info["task_id"] == "a1_2"


def test_python_must_be_named_before_anything_starts(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = resolve_options("appworld", OPTION_RULES, options)
    check_data(given)
    with pytest.raises(EnvDataError, match=r"a Python that has AppWorld installed, got ''\. Get"):
        check_data({**given, "python": ""})
    monkeypatch.setenv("APPWORLD_PYTHON", options["python"])
    check_data({**given, "python": ""})


@pytest.mark.parametrize(
    ("said", "action", "reason"),
    [
        ("<think>x</think><code>print(1)</code>", "print(1)", ""),
        ("<think>x</think><CODE>\n```python\nprint(1)\n```\n</CODE>", "print(1)", ""),
        ("print(1)", "", "no_action_tag"),
        ("<code>a</code><code>b</code>", "", "several_actions"),
        ("<think>x</think><code> </code>", "", "empty_action"),
        ("<think>x</think><code>" + "x" * 30_000 + "</code>", "", "action_too_long"),
        ("<code>print(1)</code>", "", "no_think_tag"),
    ],
)
def test_code_is_read_out_of_a_response(said: str, action: str, reason: str) -> None:
    parsed = project(said, ())
    assert (parsed.action, parsed.valid, parsed.reason) == (action, not reason, reason)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"split": "dev"}, r"'split' .* one of train, eval, test_normal, test_challenge"),
        ({"python": 3}, r"'python' .* a Python that has AppWorld installed"),
        ({"deadline_s": 0}, r"'deadline_s' .* a number above 0"),
    ],
)
def test_a_bad_option_names_option_rule_and_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_options("appworld", OPTION_RULES, given)


def test_no_episode_is_the_callers_mistake(env: AppWorldEnv) -> None:
    with pytest.raises(RuntimeError, match="no episode was started"):
        env.step("print(1)")


def test_the_prompt_tells_task_past_and_output(env: AppWorldEnv, options: dict[str, Any]) -> None:
    observation = env.reset(seed=0, options=options)
    past = PastStep(step_idx=0, observation="7", action="print(7)")
    context = PromptContext(observation=observation, step_idx=1, max_steps=9, history=[past])
    prompt = build_prompt(context)
    assert prompt.startswith("What is in the vault?\nYou act for Ada Byron")
    assert "Step 1: 7\nYou did: print(7)\nOutput of the last code:\nNothing was run" in prompt


def test_the_contract_is_kept(options: dict[str, Any]) -> None:
    check_env(load_env("appworld"), seeds=(0,), options={**options, "task_id": ""})


def test_no_process_is_left_behind(env: AppWorldEnv, options: dict[str, Any]) -> None:
    env.reset(seed=0, options=options)
    assert env._process is not None
    pid = env._process._process.pid
    env.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
