"""The walker's prompt."""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import PastStep, PromptContext
from envs.cliffwalking.env import CliffWalkingEnv
from envs.cliffwalking.expert import expert
from envs.corpus import episode_texts
from envs.prompt_template import PromptTemplate

TEMPLATE = """\
{task} P is you, C the cliff, G the goal.
Answer with <think>...</think><action>...</action>.
Actions: {actions}.
Past steps:
{history}
Now:
{observation}
=== first step ===
{task} P is you, C the cliff, G the goal.
Answer with <think>...</think><action>...</action>.
Actions: {actions}.
Now:
{observation}"""


def history(context: PromptContext) -> str:
    """Past steps as one line each: the map does not change."""
    return "\n".join(map(_past_line, context.history))


PROMPT_FIELDS = {"history": history}
build_prompt = PromptTemplate(TEMPLATE, PROMPT_FIELDS, place="envs/cliffwalking/prompts.py")


def corpus() -> Iterable[str]:
    """Prompts and responses of expert episodes, for training a tokenizer."""
    starts = [(seed, {"is_slippery": seed % 4 == 0}) for seed in range(16)]
    return episode_texts(CliffWalkingEnv, build_prompt, lambda env, _: expert(env), starts)


def _past_line(step: PastStep) -> str:
    place = step.observation.split("\n")[-2].removeprefix("Player: ")
    return f"{place}: {step.action or 'nothing legal'}"
