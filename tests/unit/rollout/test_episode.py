"""One episode: what is prompted, what is recorded, and what goes wrong."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from envs.base import Observation, ParsedAction, PromptContext, StepOutcome
from megatron_agent.anchors import anchor_digest
from megatron_agent.errors import (
    AnchorError,
    EnvDiedError,
    EnvError,
    EnvGarbageError,
    EnvLostError,
    EnvMemoryError,
    EnvTimeoutError,
    GenerationError,
    GroupStartError,
)
from megatron_agent.rollout.episode import run_episode
from megatron_agent.rollout.memory import WindowMemory
from megatron_agent.tasks import EnvTask
from megatron_agent.types import EncodedPrompt, Episode, Generation

pytestmark = pytest.mark.unit


def encode(prompt: str) -> EncodedPrompt:
    return EncodedPrompt(ids_L=tuple(prompt.encode()))


@pytest.fixture
def play(task: EnvTask, fakes: SimpleNamespace):
    """Run an episode of the corridor with a scripted policy; keyword arguments replace parts."""

    def run(texts: Sequence[str], **changes: Any) -> Episode:
        parts = {
            "task": task,
            "uid": "g7",
            "session_id": 2,
            "session": fakes.Session(),
            "spec": fakes.Spec(),
            "memory": WindowMemory(2),
            "encode": encode,
            "generate": fakes.Generate(texts),
            "max_steps": 10,
            "max_prompt_length": 1000,
        }
        return asyncio.run(run_episode(**parts | changes))

    return run


def test_a_won_episode_is_recorded_step_by_step(play):
    episode = play(["on", "on", "well, on", "on"])
    assert (episode.uid, episode.session_id, episode.env) == ("g7", 2, "frozenlake")
    assert (episode.task_id, episode.seed, episode.split) == ("t0", 3, "train")
    assert (episode.success, episode.failure) == (True, "")
    assert (episode.episode_return, episode.num_steps) == (1.0, 4)
    assert [turn.step_idx for turn in episode.turns_T] == [0, 1, 2, 3]
    assert [turn.observation for turn in episode.turns_T] == [f"cell {n}" for n in range(4)]
    assert [turn.anchor for turn in episode.turns_T] == [anchor_digest(n) for n in range(4)]
    assert [turn.reward for turn in episode.turns_T] == [0, 0, 0, 1]
    assert [turn.terminated for turn in episode.turns_T] == [False, False, False, True]
    assert not any(turn.truncated for turn in episode.turns_T)
    assert episode.turns_T[2].action == "on"
    assert episode.turns_T[2].generation.token_ids_L == tuple(b"well, on")
    assert episode.turns_T[3].info == {"success": True}
    assert all(turn.generate_s >= 0 and turn.env_s >= 0 for turn in episode.turns_T)


def test_each_prompt_is_made_afresh_from_a_window(play):
    episode = play(["on", "on", "on", "on"])
    assert [turn.prompt for turn in episode.turns_T] == [
        "cell 0",
        "cell 0>on;cell 1",
        "cell 0>on;cell 1>on;cell 2",
        "cell 1>on;cell 2>on;cell 3",
    ]
    assert all(turn.prompt_ids_L == tuple(turn.prompt.encode()) for turn in episode.turns_T)


def test_no_history_makes_step_independent_prompts(play):
    episode = play(["on", "on", "on", "on"], memory=WindowMemory(0))
    assert [turn.prompt for turn in episode.turns_T] == [f"cell {n}" for n in range(4)]


def test_the_policy_gets_the_prompt_ids_and_the_row_key(play, fakes):
    generate = fakes.Generate(["on", "back"])
    play([], generate=generate, max_steps=2)
    assert generate.requests[0] == (tuple(b"cell 0"), "g7_2_0")
    assert generate.requests[1][1] == "g7_2_1"


def test_encode_may_be_a_coroutine_function(play):
    async def encode_later(prompt: str) -> EncodedPrompt:
        await asyncio.sleep(0)
        return EncodedPrompt(ids_L=(len(prompt),))

    assert play(["on"], encode=encode_later, max_steps=1).turns_T[0].prompt_ids_L == (6,)


def test_the_step_limit_truncates_the_last_turn_only(play):
    episode = play(["on", "back", "on"], max_steps=3)
    assert [turn.truncated for turn in episode.turns_T] == [False, False, True]
    assert (episode.success, episode.failure) == (False, "")


def test_winning_on_the_last_step_is_not_truncation(play):
    last = play(["on"] * 4, max_steps=4).turns_T[-1]
    assert (last.terminated, last.truncated) == (True, False)


def test_an_environment_may_truncate_too(play, fakes):
    class Impatient(fakes.Session):
        async def step(self, action: str) -> StepOutcome:
            return dataclasses.replace(await super().step(action), truncated=True)

    assert play(["on"], session=Impatient()).num_steps == 1


def test_validity_needs_the_parser_and_the_environment(play):
    episode = play(["on", " ", "sideways"], max_steps=3)
    assert [turn.action_valid for turn in episode.turns_T] == [True, False, False]
    assert [turn.invalid_reason for turn in episode.turns_T] == ["", "empty_action", "env_refused"]
    assert [turn.action for turn in episode.turns_T] == ["on", "", "sideways"]


def test_an_environment_error_keeps_the_turn_that_caused_it(play, fakes):
    session = fakes.Session(errors={1: EnvError("worker 0 died")})
    episode = play(["on", "on"], session=session)
    assert episode.failure == "env_error: worker 0 died"
    assert not episode.success
    assert [turn.reward for turn in episode.turns_T] == [0.0, 0.0]
    last = episode.turns_T[-1]
    assert (last.action, last.action_valid, last.terminated, last.truncated) == (
        "on",
        True,
        False,
        False,
    )
    assert session.log == ["reset", "step on", "step on", "close"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EnvTimeoutError, "env_timeout"),
        (EnvDiedError, "env_died"),
        (EnvGarbageError, "env_garbage"),
        (EnvMemoryError, "env_memory"),
        (EnvLostError, "env_lost"),
    ],
)
def test_a_failure_says_first_what_kind_it_is(play, fakes, error: type[EnvError], kind: str):
    episode = play(["on", "on"], session=fakes.Session({1: error("worker 0")}))
    assert (episode.num_steps, episode.failure) == (2, f"{kind}: worker 0")


def test_a_failing_reset_gives_an_episode_without_turns(play, fakes):
    session = fakes.Session(errors={-1: EnvError("no such level")})
    episode = play([], session=session)
    assert (episode.turns_T, episode.failure) == ((), "env_error: no such level")
    assert session.log == ["reset", "close"]


def test_an_over_long_prompt_ends_the_episode_as_data(play):
    episode = play(["on", "on"], max_prompt_length=10)
    assert episode.num_steps == 1
    assert episode.failure.startswith(
        "prompt_too_long: the prompt has 16 tokens, at most 10 are allowed. Raise data.max_prompt"
    )
    assert play([], max_prompt_length=3).turns_T == ()


def test_a_generation_error_ends_the_episode_as_data(play):
    episode = play(["on", "!"])
    assert episode.num_steps == 1
    assert episode.failure == (
        "generation_error: generate raised ConnectionError: the server is gone"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids_L": (), "log_probs_L": ()}, "the response has no tokens."),
        ({"stop_reason": "abort"}, "the server aborted the request."),
        ({"log_probs_L": (0.0,)}, "one log-prob per token, got 1 for 2 tokens"),
    ],
)
def test_a_response_that_cannot_be_trained_on_is_an_error(
    play, changes: dict[str, Any], message: str
):
    async def generate(prompt: EncodedPrompt, request_id: str) -> Generation:
        good = Generation(token_ids_L=(1, 2), log_probs_L=(0.0, 0.0), text="on")
        return dataclasses.replace(good, **changes)

    episode = play([], generate=generate)
    assert episode.failure.startswith("generation_error: ")
    assert message in episode.failure


def test_a_generation_error_of_the_caller_is_not_wrapped_twice(play):
    async def generate(prompt: EncodedPrompt, request_id: str) -> Generation:
        raise GenerationError("no server is left")

    assert play([], generate=generate).failure == "generation_error: no server is left"


def test_a_tokenizer_error_is_data(play):
    def encode_badly(prompt: str) -> EncodedPrompt:
        raise TypeError("surrogates not allowed")

    failure = play([], encode=encode_badly).failure
    assert failure == "generation_error: encode raised TypeError: surrogates not allowed"


def test_errors_of_prompt_and_parser_code_are_data(play, fakes):
    class Broken(fakes.Spec):
        def build_prompt(self, context: PromptContext) -> str:
            if context.step_idx == 1:
                raise KeyError("inventory")
            return super().build_prompt(context)

    assert play(["on"], spec=Broken()).failure == (
        "env_error: build_prompt raised KeyError: 'inventory'"
    )

    class BadParser(fakes.Spec):
        def project(self, text: str, admissible: Sequence[str]) -> ParsedAction:
            raise IndexError("no words")

    assert (
        play(["on"], spec=BadParser()).failure == "env_error: project raised IndexError: no words"
    )


def test_a_reward_that_is_not_finite_is_an_environment_error(play, fakes):
    class Rich(fakes.Session):
        async def step(self, action: str) -> StepOutcome:
            return dataclasses.replace(await super().step(action), reward=float("inf"))

    episode = play(["on"], session=Rich())
    assert episode.failure == "env_error: a step's reward must be finite, got inf."
    assert episode.turns_T[0].reward == 0.0


@pytest.mark.parametrize(
    ("anchor", "message"),
    [(None, "step 0: anchor must be a value that names the state, got None"), (object(), "object")],
)
def test_an_observation_without_an_anchor_is_not_data(play, fakes, anchor, message):
    class Odd(fakes.Session):
        def observe(self) -> Observation:
            return dataclasses.replace(super().observe(), anchor=anchor)

    session = Odd()
    with pytest.raises(AnchorError, match=message):
        play([], session=session)
    assert session.log[-1] == "close"


def test_a_long_failure_text_is_cut(play, fakes):
    episode = play([], session=fakes.Session(errors={-1: EnvError("x" * 10_000)}))
    assert len(episode.failure) == 500


def test_a_group_that_starts_in_two_states_is_not_data(play, fakes):
    session = fakes.Session(errors={-1: GroupStartError("seeds 1 and 2")})
    with pytest.raises(GroupStartError, match="seeds 1 and 2"):
        play([], session=session)
    assert session.log[-1] == "close"


def test_a_cancelled_episode_closes_its_session_and_stays_cancelled(task, fakes):
    session = fakes.Session()

    async def never(prompt: EncodedPrompt, request_id: str) -> Generation:
        await asyncio.sleep(3600)
        raise AssertionError

    async def main() -> None:
        episode = asyncio.create_task(
            run_episode(
                task=task,
                uid="g",
                session_id=0,
                session=session,
                spec=fakes.Spec(),
                memory=WindowMemory(0),
                encode=encode,
                generate=never,
                max_steps=3,
                max_prompt_length=100,
            )
        )
        await asyncio.sleep(0.01)
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode

    asyncio.run(main())
    assert session.log == ["reset", "close"]


@pytest.mark.parametrize("limit", ["max_steps", "max_prompt_length"])
def test_limits_below_one_are_the_callers_mistake(play, limit: str):
    with pytest.raises(ValueError, match=f"{limit} must be >= 1, got 0"):
        play([], **{limit: 0})


def test_memories_are_reset_before_an_episode(play):
    memory = WindowMemory(2)
    play(["on", "on"], memory=memory, max_steps=2)
    assert play(["on"], memory=memory, max_steps=1).turns_T[0].prompt == "cell 0"
