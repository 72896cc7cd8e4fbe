"""Search's prompt: the question, what was found in the steps that are remembered, and now."""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import PastStep, PromptContext
from envs.prompt_template import FIRST_STEP_LINE, PromptTemplate
from envs.search.actions import format_response
from envs.search.env import SearchEnv
from envs.search.expert import expert

_INTRODUCTION = """\
Answer the question. You can search a collection of texts as often as you need.
To search: <think>...</think><search>words</search>
When you know the answer, as short as can be: <think>...</think><answer>...</answer>
Question: {task}"""
_TEMPLATE = f"""\
{_INTRODUCTION}
Past steps:
{{history}}
Now:
{{observation}}
{FIRST_STEP_LINE}
{_INTRODUCTION}
{{observation}}"""
_NUM_CORPUS_EPISODES = 100

build_prompt = PromptTemplate(_TEMPLATE, place="the prompt of search")
"""The user message for one step."""


def corpus() -> Iterable[str]:
    """Prompts and responses of expert episodes, for training a tokenizer."""
    env = SearchEnv()
    for seed in range(_NUM_CORPUS_EPISODES):
        observation = env.reset(seed=seed)
        history: list[PastStep] = []
        for step_idx, action in enumerate(expert(env)):
            context = PromptContext(
                observation=observation, step_idx=step_idx, max_steps=10, history=history[-2:]
            )
            yield build_prompt(context)
            yield format_response(action)
            history.append(PastStep(step_idx=step_idx, observation=observation.text, action=action))
            observation = env.step(action).observation
    env.close()
