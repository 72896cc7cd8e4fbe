"""The card player's prompt."""

from __future__ import annotations

from collections.abc import Iterable

from envs.blackjack.env import BlackjackEnv
from envs.blackjack.expert import expert
from envs.corpus import episode_texts
from envs.prompt_template import PromptTemplate

TEMPLATE = """\
{task} Figures count 10, an ace 1 or 11. The dealer draws up to 17.
Answer with <think>...</think><action>...</action>.
Actions: {actions}.
Now:
{observation}"""

build_prompt = PromptTemplate(TEMPLATE, place="envs/blackjack/prompts.py")


def corpus() -> Iterable[str]:
    """Prompts and responses of expert games, for training a tokenizer."""
    starts: list[tuple[int, dict[str, bool]]] = [(seed, {}) for seed in range(60)]
    return episode_texts(BlackjackEnv, build_prompt, lambda env, _: expert(env), starts)
