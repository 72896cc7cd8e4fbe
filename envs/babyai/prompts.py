"""The prompt of grid worlds."""

from __future__ import annotations

from collections.abc import Iterable

from envs.babyai.env import BabyAIEnv
from envs.babyai.expert import expert
from envs.base import PastStep, PromptContext
from envs.corpus import episode_texts
from envs.prompt_template import PromptTemplate

_RULES = """\
Your mission in a grid world: {task}.
pick up and toggle act on the cell in front of you; toggle opens doors and boxes.
Answer with <think>...</think><action>...</action>.
Actions: {actions}."""
TEMPLATE = f"""\
{_RULES}
Past steps:
{{history}}
Now:
{{observation}}
=== first step ===
{_RULES}
Now:
{{observation}}"""


def history(context: PromptContext) -> str:
    """What was seen and done, one step a line; of a whole map only what was done."""
    return "\n".join(map(_past_line, context.history))


PROMPT_FIELDS = {"history": history}
build_prompt = PromptTemplate(TEMPLATE, PROMPT_FIELDS, place="envs/babyai/prompts.py")


def corpus() -> Iterable[str]:
    """Prompts and responses of bot episodes on small levels, for training a tokenizer."""
    levels = ("GoToLocal-v0", "PickupLoc-v0", "OpenDoor-v0")
    starts = [
        (seed, {"level": level, "view": view})
        for level in levels
        for view in ("words", "grid")
        for seed in range(4)
    ]
    return episode_texts(BabyAIEnv, build_prompt, lambda env, _: expert(env), starts)


def _past_line(step: PastStep) -> str:
    first_line = step.observation.split("\n", 1)[0]
    seen = f"{first_line} " if first_line.startswith("You") else ""
    return f"{seen}Did: {step.action or 'nothing legal'}"
