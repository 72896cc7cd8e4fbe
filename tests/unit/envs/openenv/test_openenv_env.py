"""Episodes with a program that speaks OpenEnv's protocol, and what goes wrong with servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from envs.base import PastStep, PromptContext
from envs.data import EnvDataError
from envs.openenv.env import OpenEnvEnv, check_data
from envs.openenv.prompts import build_prompt
from envs.openenv.session import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    OpenEnvError,
    fetch_json,
)

pytestmark = pytest.mark.unit

FIELDS = {
    "text_field": "text",
    "anchor_field": "metadata.state",
    "task_field": "metadata.task",
    "actions_field": "commands",
    "success_field": "metadata.won",
}


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenEnvEnv]:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    made = OpenEnvEnv()
    yield made
    made.close()


def options(url: str, path: str = "hunt", **given: Any) -> dict[str, Any]:
    return {"url": f"{url}/{path}", "deadline_s": 60, **given}


def test_an_episode_is_won(env: OpenEnvEnv, openenv_url: str) -> None:
    start = env.reset(seed=3, options=options(openenv_url, **FIELDS))
    assert start.text == "You are in the hall."
    assert start.anchor == "2 False"
    assert start.task == "Open the chest."
    assert start.admissible_actions == ("go left", "go right", "take key", "open chest")
    ways = ["go left", "take key", "go right", "go right", "go right", "open chest"]
    outcomes = [env.step(action) for action in ways]
    assert outcomes[1].observation.text == "You are in the kitchen. You carry the key."
    assert [outcome.reward for outcome in outcomes] == [0, 0, 0, 0, 0, 1]
    assert outcomes[-1].terminated
    assert [outcome.info["success"] for outcome in outcomes] == [False] * 5 + [True]
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("go left")


def test_without_options_the_servers_schema_says_what_can_be_said(
    env: OpenEnvEnv, openenv_url: str
) -> None:
    observation = env.reset(seed=3, options=options(openenv_url))
    assert observation.admissible_actions == ("go left", "go right", "take key", "open chest")
    assert observation.text.startswith("text: You are in the hall.\ncommands: ")
    assert observation.anchor == observation.text
    assert env.step("take key").action_valid


def test_reset_parameters_reach_the_server_and_seeds_differ(
    env: OpenEnvEnv, openenv_url: str
) -> None:
    given = options(openenv_url, reset={"start": 0}, text_field="text")
    texts = [env.reset(seed=seed, options=given).text for seed in range(20)]
    assert all(text.startswith("You are in the cellar.") for text in texts)
    assert len(set(texts)) > 1


def test_sessions_of_a_group_are_apart(openenv_url: str) -> None:
    members = [OpenEnvEnv() for _ in range(8)]
    given = options(openenv_url, **FIELDS)
    starts = {env.reset(seed=3, options=given).text for env in members}
    assert starts == {"You are in the hall."}
    members[0].step("go left")
    texts = [env.step("take key").observation.text for env in members]
    assert texts == ["You are in the kitchen. You carry the key."] + ["You are in the hall."] * 7
    for env in members:
        env.close()
        env.close()


@pytest.mark.parametrize("action", ["", " ", "GO LEFT", "dance", "x" * 100_000, "\ud800"])
def test_an_action_that_is_not_legal_changes_nothing(
    env: OpenEnvEnv, openenv_url: str, action: str
) -> None:
    start = env.reset(seed=3, options=options(openenv_url, **FIELDS))
    outcome = env.step(action)
    assert not outcome.action_valid
    assert outcome.observation == start
    assert env.step("go left").observation.text == "You are in the kitchen. A key lies here."


@pytest.mark.parametrize("action", ["dance", "", "\ud800"])
def test_what_the_schema_refuses_is_an_invalid_step(
    env: OpenEnvEnv, openenv_url: str, action: str
) -> None:
    start = env.reset(seed=3, options=options(openenv_url, "free", text_field="text"))
    assert start.admissible_actions == ()
    outcome = env.step(action)
    assert not outcome.action_valid
    assert not outcome.terminated
    assert env.step("go left").action_valid


def test_an_agent_may_think_for_longer_than_the_server_waits_for_a_ping(
    env: OpenEnvEnv, openenv_url: str
) -> None:
    def num_pongs() -> int:
        answer = fetch_json(f"{openenv_url}/two", "/health", deadline_s=10)
        return int(answer["num_pongs"])

    before, ends_s = num_pongs(), time.monotonic() + 60
    # Its server pings after a reset; nobody asks for an answer meanwhile.
    env.reset(
        seed=3, options=options(openenv_url, "two", commands={"go left": {"command": "go left"}})
    )
    while num_pongs() == before and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert num_pongs() == before + 1
    assert env.step("go left").action_valid


# --- what goes wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("slow", r"/hunt did not answer within 1 s\. Raise env\.options\.deadline_s"),
        ("garbage", r"something else than OpenEnv's protocol .*: '<html>'\. Start it, or correct"),
        ("nan", r"something else than OpenEnv's protocol \(the reward is nan\)"),
        ("hang up", r"cannot be reached \(ConnectionResetError: the server hung up\)"),
        ("crash", r"failed in a step: division by zero \(EXECUTION_ERROR\)\. Its step\(\) should"),
    ],
    ids=["slow", "garbage", "nan", "hang up", "crash"],
)
def test_a_fault_of_the_server_is_an_error_and_the_next_reset_works(
    env: OpenEnvEnv, openenv_url: str, fault: str, message: str
) -> None:
    env.reset(seed=3, options=options(openenv_url, reset={"fault": fault}))
    if fault == "slow":
        assert env._session is not None
        env._session._deadline_s = 1
    with pytest.raises(OpenEnvError, match=message):
        env.step("go left")
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("go left")
    env.reset(seed=3, options=options(openenv_url))
    assert env.step("go left").action_valid


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no reset", r"refused to reset: no maps left \(EXECUTION_ERROR\)"),
        ("done at once", r"calls the episode of seed 3 done at its start"),
    ],
    ids=["no reset", "done at once"],
)
def test_an_episode_that_cannot_start_says_why(
    env: OpenEnvEnv, openenv_url: str, fault: str, message: str
) -> None:
    with pytest.raises(OpenEnvError, match=message):
        env.reset(seed=3, options=options(openenv_url, reset={"fault": fault}))
    with pytest.raises(RuntimeError, match=r"no episode was started|the episode is over"):
        env.step("go left")


def test_a_full_server_is_asked_again_until_the_deadline(env: OpenEnvEnv, openenv_url: str) -> None:
    given = options(openenv_url, "small")
    other = OpenEnvEnv()
    other.reset(seed=0, options=given)
    message = r"no place for another session \(1 of 1 .*\)\. Start it with max_concurrent_envs"
    with pytest.raises(OpenEnvError, match=message):
        env.reset(seed=0, options=given | {"deadline_s": 2})
    other.close()
    env.reset(seed=0, options=given)


def test_a_server_that_is_away_is_named_before_anything_starts(env: OpenEnvEnv) -> None:
    given = {"url": "http://127.0.0.1:9", "commands": {"left": {"move": 0}}}
    with pytest.raises(OpenEnvError, match=r"http://127.0.0.1:9 cannot be reached .*Start it, or"):
        env.reset(seed=0, options=given)
    with pytest.raises(EnvDataError, match=r"gives no answer to GET /health .*Start it, or"):
        check_data(given)


def test_a_server_must_be_named(env: OpenEnvEnv) -> None:
    with pytest.raises(EnvDataError, match=r"must have the address .* got ''\. Set env\.options"):
        env.reset(seed=0)


def test_the_address_may_stand_in_the_environment(
    env: OpenEnvEnv, openenv_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, f"{openenv_url}/hunt")
    check_data({})
    assert env.reset(seed=0).admissible_actions


def test_a_schema_that_leaves_a_choice_asks_for_an_option(
    env: OpenEnvEnv, openenv_url: str
) -> None:
    with pytest.raises(OpenEnvError, match=r"fields x, y\)\. Set env\.options\.action, such as"):
        env.reset(seed=0, options=options(openenv_url, "two"))


def test_a_field_that_is_not_sent_is_named_with_those_that_are(
    env: OpenEnvEnv, openenv_url: str
) -> None:
    with pytest.raises(
        OpenEnvError, match=r"'text_field' .* no field 'view'; there is: text, commands, metadata"
    ):
        env.reset(seed=0, options=options(openenv_url, text_field="view"))


def test_no_episode_is_the_callers_mistake(env: OpenEnvEnv) -> None:
    with pytest.raises(RuntimeError, match="no episode was started"):
        env.step("go left")


# --- the prompt ------------------------------------------------------------------------------

PROMPT = """\
Reach the goal of this environment.
Answer with <think>...</think><action>...</action>. Actions: any text.
Past steps:
Step 1: A hall.
You did: go left
Now:
text: A hall."""


def test_the_prompt_tells_task_past_and_view(env: OpenEnvEnv, openenv_url: str) -> None:
    observation = env.reset(seed=3, options=options(openenv_url, "free", text_field="text"))
    past = PastStep(step_idx=0, observation="A hall.", action="go left")
    context = PromptContext(observation=observation, step_idx=1, max_steps=9, history=[past])
    assert build_prompt(context) == PROMPT.replace("text: A hall.", "You are in the hall.")
    first = PromptContext(observation=observation, step_idx=0, max_steps=9, history=[])
    assert "Past steps" not in build_prompt(first)
