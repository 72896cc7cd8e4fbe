"""AppWorld's prompt, and texts for a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from envs.appworld.actions import format_response
from envs.base import Observation, PastStep, PromptContext
from envs.prompt_template import FIRST_STEP_LINE, PromptTemplate

_RULES = """\
{task}
You work in a Python shell that keeps its variables. Apps are used through the object apis: \
apis.api_docs.show_app_descriptions(), apis.api_docs.show_api_descriptions(app_name='spotify') and \
apis.api_docs.show_api_doc(app_name='spotify', api_name='login') tell what there is, \
apis.supervisor.show_account_passwords() has the passwords. Print what you want to see. When you \
are done, call apis.supervisor.complete_task(), with answer=... if you were asked something.
Think in <think>...</think>, then give code in <code>...</code>."""
_TEMPLATE = f"""\
{_RULES}
The last {{history_length}} of {{step_count}} steps:
{{history}}
Output of the last code:
{{observation}}
{FIRST_STEP_LINE}
{_RULES}"""

build_prompt = PromptTemplate(_TEMPLATE, place="envs/appworld/prompts.py")
"""The user message for one step."""

_CODES = (
    "print(apis.api_docs.show_app_descriptions())",
    "print(apis.api_docs.show_api_descriptions(app_name='spotify'))",
    "print(apis.supervisor.show_account_passwords())",
    "token = apis.venmo.login(username='a@b.com', password='x')['access_token']\nprint(token)",
    "for page in range(10):\n    print(apis.amazon.show_orders(page_index=page))",
    "apis.supervisor.complete_task(answer=12)",
)


def corpus() -> Iterable[str]:
    """A few prompts and responses; made up, so that no data are needed."""
    observation = Observation(text="[{'name': 'spotify'}]", anchor=0, task="Like all songs.")
    for step_idx, code in enumerate(_CODES):
        past = PastStep(step_idx=max(0, step_idx - 1), observation="(no output)", action=code)
        context = PromptContext(
            observation=observation,
            step_idx=step_idx,
            max_steps=40,
            history=[past] if step_idx else [],
        )
        yield build_prompt(context)
        yield format_response(code)
