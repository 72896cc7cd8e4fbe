"""ScienceWorld's prompt, and texts for a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from envs.corpus import episode_texts
from envs.prompt_template import PromptTemplate, with_past
from envs.scienceworld.actions import ACTIONS
from envs.scienceworld.env import ScienceWorldEnv
from envs.scienceworld.expert import expert

_RULES = f"""\
{{task}}
You act by short commands, with names of things for X and Y: {", ".join(ACTIONS)}, teleport to X.
Think in <think>...</think>, then give one command in <action>...</action>."""
_CORPUS_TASKS = ("find-living-thing", "find-plant")

build_prompt = PromptTemplate(with_past(_RULES), place="envs/scienceworld/prompts.py")
"""The user message for one step."""


def corpus() -> Iterable[str]:
    """Prompts and responses of two solved tasks, for training a tokenizer."""
    starts = [(seed, {"task": task}) for task in _CORPUS_TASKS for seed in range(2)]
    return episode_texts(
        ScienceWorldEnv, build_prompt, lambda env, _: expert(env), starts, max_steps=20
    )
