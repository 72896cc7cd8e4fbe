"""TextWorldExpress's prompt, and texts for a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from envs.corpus import episode_texts
from envs.prompt_template import PromptTemplate, with_past
from envs.textworld_express.env import GAMES, TextWorldExpressEnv
from envs.textworld_express.expert import expert

_RULES = """\
{task}
You act by short commands. Commands that are possible now: {actions}.
Think in <think>...</think>, then give one of them in <action>...</action>."""
_SEEDS_PER_GAME = 4

build_prompt = PromptTemplate(with_past(_RULES), place="envs/textworld_express/prompts.py")
"""The user message for one step."""


def corpus() -> Iterable[str]:
    """Prompts and responses of solved games of every kind, for training a tokenizer."""
    starts = [(seed, {"game": game}) for game in GAMES for seed in range(_SEEDS_PER_GAME)]
    return episode_texts(
        TextWorldExpressEnv, build_prompt, lambda env, _: expert(env), starts, max_steps=40
    )
