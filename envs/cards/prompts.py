"""Prompts of the card games: rules, past actions, what is on the table, what may be done."""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import PastStep, PromptContext
from envs.cards.env import GAMES, CardsEnv
from envs.cards.expert import expert
from envs.tags import format_response

ANSWER = "Answer with <think>...</think><action>...</action>."


def build_prompt(context: PromptContext) -> str:
    """The user message for one step, built from nothing but ``context``.

    Example: see ``tests/unit/envs/test_cards.py`` for a whole prompt.
    """
    observation = context.observation
    parts = [observation.task, ANSWER]
    if context.history:
        past = ", ".join(step.action or "no legal action" for step in context.history)
        parts.append(f"Past actions: {past}")
    parts.append(observation.text)
    # An action per blank: a comma would look like one more token of a formula.
    parts.append(f"Actions: {' '.join(observation.admissible_actions)}")
    return "\n".join(parts)


def corpus() -> Iterable[str]:
    """Prompts and responses of expert episodes of every game, for training a tokenizer."""
    for game in GAMES:
        for seed in range(10):
            yield from _episode_texts(seed=seed, game=game)


def _episode_texts(*, seed: int, game: str, max_steps: int = 20) -> Iterable[str]:
    env = CardsEnv()
    observation = env.reset(seed=seed, options={"game": game})
    history: list[PastStep] = []
    for step_idx in range(max_steps):
        plan = expert(env)
        if not plan:
            break
        yield build_prompt(
            PromptContext(
                observation=observation,
                step_idx=step_idx,
                max_steps=max_steps,
                history=history[-2:],
            )
        )
        yield from (format_response(action) for action in observation.admissible_actions)
        history.append(PastStep(step_idx=step_idx, observation=observation.text, action=plan[0]))
        observation = env.step(plan[0]).observation
    env.close()
