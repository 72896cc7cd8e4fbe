"""The taxi driver's prompt."""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import PastStep, PromptContext
from envs.corpus import episode_texts
from envs.prompt_template import PromptTemplate
from envs.taxi.env import TaxiEnv
from envs.taxi.expert import expert

TEMPLATE = """\
{task} T is the taxi, | a wall, letters are stops.
Answer with <think>...</think><action>...</action>.
Actions: {actions}.
Past steps:
{history}
Now:
{observation}
=== first step ===
{task} T is the taxi, | a wall, letters are stops.
Answer with <think>...</think><action>...</action>.
Actions: {actions}.
Now:
{observation}"""


def history(context: PromptContext) -> str:
    """Past steps as one line each: the map does not change."""
    return "\n".join(map(_past_line, context.history))


PROMPT_FIELDS = {"history": history}
build_prompt = PromptTemplate(TEMPLATE, PROMPT_FIELDS, place="envs/taxi/prompts.py")


def corpus() -> Iterable[str]:
    """Prompts and responses of expert episodes, for training a tokenizer."""
    starts: list[tuple[int, dict[str, bool]]] = [(seed, {}) for seed in range(12)]
    return episode_texts(TaxiEnv, build_prompt, lambda env, _: expert(env), starts)


def _past_line(step: PastStep) -> str:
    taxi, passenger, *_ = step.observation.split("\n")[-4:]
    return f"{taxi}. {passenger}. Did: {step.action or 'nothing legal'}"
