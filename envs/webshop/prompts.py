"""WebShop's prompt: the instruction, the past in one line a step, the page, what can be done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from envs.base import PastStep, PromptContext
from envs.prompt_template import FIRST_STEP_LINE, PromptTemplate
from envs.tags import format_response
from envs.webshop.actions import has_search_bar
from envs.webshop.env import WebShopEnv
from envs.webshop.expert import expert

_INTRODUCTION = """\
You shop in a web shop. Search, open products, choose the options that are asked for, and buy the \
product that fits the instruction best. You can buy once.
Answer with <think>...</think><action>...</action>.
Instruction: {task}"""
_PRESENT = """\
Now:
{observation}
Actions: {actions}"""
_TEMPLATE = f"""\
{_INTRODUCTION}
Past steps:
{{history}}
{_PRESENT}
{FIRST_STEP_LINE}
{_INTRODUCTION}
{_PRESENT}"""
_NUM_CORPUS_EPISODES = 100


def _actions(context: PromptContext) -> str:
    """The one search that is listed stands for all; shown as it is, it would be all that is
    tried.
    """
    actions = context.observation.admissible_actions
    return "search[words of your choice]" if has_search_bar(actions) else ", ".join(actions)


def _history(context: PromptContext) -> str:
    """One line a step, the page's first line for the page."""
    return "\n".join(
        f"{step.observation.split(chr(10), 1)[0]}: {step.action or 'no legal action'}"
        for step in context.history
    )


PROMPT_FIELDS: Mapping[str, Callable[[PromptContext], str]] = {
    "actions": _actions,
    "history": _history,
}
build_prompt = PromptTemplate(_TEMPLATE, PROMPT_FIELDS, place="the prompt of webshop")
"""The user message for one step."""


def corpus() -> Iterable[str]:
    """Prompts and responses of expert episodes, for training a tokenizer."""
    env = WebShopEnv()
    for seed in range(_NUM_CORPUS_EPISODES):
        observation = env.reset(seed=seed)
        history: list[PastStep] = []
        for step_idx, action in enumerate(expert(env)):
            context = PromptContext(
                observation=observation, step_idx=step_idx, max_steps=15, history=history[-2:]
            )
            yield build_prompt(context)
            yield format_response(action)
            history.append(PastStep(step_idx=step_idx, observation=observation.text, action=action))
            observation = env.step(action).observation
    env.close()
