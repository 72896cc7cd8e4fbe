"""A policy is warm-started on the prompts that it will get."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envs.base import Observation, StepOutcome, TextEnv
from envs.prompt_template import with_prompt_file
from envs.registry import EnvSpec, load_env
from megatron_agent.policy import evaluate
from megatron_agent.policy.demonstrations import demonstrate
from megatron_agent.policy.tokenizer import encode_prompt, train_tokenizer
from megatron_agent.rollout.episode import run_episode
from megatron_agent.rollout.memory import load_memory
from megatron_agent.rollout.parts import MessageContent
from megatron_agent.tasks import EnvTask, generate_tasks
from megatron_agent.types import EncodedPrompt, Generation

pytestmark = pytest.mark.unit

MAX_STEPS = 6
PROMPT_FILE = """Step {step} of {max_steps}, before it:
{history}
Now:
{observation}
=== first step ===
Begin:
{observation}
"""
# Two names that differ from the default in what they show of the past, and one with notes.
MEMORIES = ["key_event", "search", "summary_slot"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(load_env("frozenlake").corpus())


@pytest.fixture(scope="module")
def task() -> EnvTask:
    """The first whose expert needs a few steps, so that memories have something to choose from."""
    spec = load_env("frozenlake")
    assert spec.expert is not None
    for task in generate_tasks("frozenlake", 50, 0, options={"size": 4}):
        env = spec.make()
        env.reset(seed=task.seed, options=task.options)
        if len(spec.expert(env)) >= MAX_STEPS:
            return task
    raise AssertionError("no such task")


@pytest.fixture(params=[None, PROMPT_FILE], ids=["own prompt", "prompt file"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> EnvSpec:
    if request.param is None:
        return load_env("frozenlake")
    path = tmp_path / "prompt.txt"
    path.write_text(request.param)
    return with_prompt_file(load_env("frozenlake"), str(path))


class ExpertSession:
    """The environment in this process, with its expert at hand."""

    num_restores = 0

    def __init__(self, spec: EnvSpec, task: EnvTask) -> None:
        self.env: TextEnv = spec.make()
        self.spec, self.task = spec, task

    async def reset(self) -> Observation:
        return self.env.reset(seed=self.task.seed, options=self.task.options)

    async def step(self, action: str) -> StepOutcome:
        return self.env.step(action)

    async def close(self) -> None:
        self.env.close()

    async def advise(self, *_: Any) -> Generation:
        assert self.spec.expert is not None
        text = self.spec.format_response(self.spec.expert(self.env)[0])
        return Generation(token_ids_L=(1,), log_probs_L=None, text=text)


def rollout_prompts(tokenizer: Any, spec: EnvSpec, task: EnvTask, memory: str) -> list[list[int]]:
    def encode(content: MessageContent) -> EncodedPrompt:
        assert isinstance(content, str)
        return EncodedPrompt(ids_L=tuple(encode_prompt(tokenizer, content)))

    session = ExpertSession(spec, task)
    episode = asyncio.run(
        run_episode(
            task=task,
            uid="g",
            session_id=0,
            session=session,
            spec=spec,
            memory=load_memory(memory, 2),
            encode=encode,
            generate=session.advise,
            max_steps=MAX_STEPS,
            max_prompt_length=10_000,
        )
    )
    return [list(turn.prompt_ids_L) for turn in episode.turns_T]


@pytest.mark.parametrize("memory", MEMORIES)
def test_demonstrations_have_the_prompts_of_the_rollout_token_by_token(
    tokenizer: Any, spec: EnvSpec, task: EnvTask, memory: str
) -> None:
    demonstrations = demonstrate(
        spec,
        [task, task],  # the second must not remember the first
        max_steps=MAX_STEPS,
        memory=load_memory(memory, 2),
        wander=0.0,
        label_noise=0.0,
        rng=random.Random(0),
    )
    shown = [encode_prompt(tokenizer, one.prompt) for one in demonstrations]
    assert shown == 2 * rollout_prompts(tokenizer, spec, task, memory)
    assert len(shown) == 2 * MAX_STEPS


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_policy_is_measured_on_the_prompts_of_the_rollout(
    tokenizer: Any,
    spec: EnvSpec,
    task: EnvTask,
    memory: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Expert:
        """Stands for a model: plays along with the episode that is measured."""

        def __init__(self) -> None:
            self.env = spec.make()
            self.env.reset(seed=task.seed, options=task.options)
            self.prompts: list[list[int]] = []

        def eval(self) -> None:
            pass

        def sample(
            self, model: Expert, prompt_ids_N: Sequence[list[int]], **_: Any
        ) -> list[list[int]]:
            assert model is self and spec.expert is not None
            self.prompts.extend(prompt_ids_N)
            action = spec.expert(self.env)[0]
            self.env.step(action)
            return [tokenizer.encode(spec.format_response(action))]

    expert = Expert()
    monkeypatch.setattr(evaluate, "sample_responses", expert.sample)
    model: Any = expert
    evaluate.evaluate_policy(
        model, tokenizer, spec, [task], max_steps=MAX_STEPS, history_length=2, memory=memory
    )
    assert expert.prompts == rollout_prompts(tokenizer, spec, task, memory)
