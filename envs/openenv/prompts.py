"""The prompt of environments that a server serves; ``env.prompt_file`` replaces it."""

from __future__ import annotations

from envs.base import PromptContext
from envs.prompt_template import FIRST_STEP_LINE, PromptTemplate

_RULES = """\
{task}
Answer with <think>...</think><action>...</action>. Actions: {actions}."""
_TEMPLATE = f"""\
{_RULES}
Past steps:
{{history}}
Now:
{{observation}}
{FIRST_STEP_LINE}
{_RULES}
Now:
{{observation}}"""

_NO_TASK = "Reach the goal of this environment."


def task(context: PromptContext) -> str:
    """What is to be done, in general words where neither the server nor an option says it."""
    return context.observation.task or _NO_TASK


PROMPT_FIELDS = {"task": task}
build_prompt = PromptTemplate(_TEMPLATE, PROMPT_FIELDS, place="envs/openenv/prompts.py")
"""The user message for one step."""
