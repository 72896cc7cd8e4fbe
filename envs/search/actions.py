"""From a response to ``<search>words</search>`` or ``<answer>text</answer>``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.base import ParsedAction
from envs.printable import one_line
from envs.tags import FALLBACK_ACTION, has_think_pair

MAX_CHARS = 500
"""Of a query or an answer."""
_TAG = re.compile(r"<(/?)(search|answer)>", re.IGNORECASE)


def project(text: str, admissible: Sequence[str]) -> ParsedAction:
    """The search or the answer that the response gives.

    Valid means: exactly one pair of tags, ``search`` or ``answer``, with a text in it, after one
    closed ``<think>`` pair. Reasons otherwise, the first that applies: ``no_action_tag``,
    ``several_actions``, ``empty_action``, ``action_too_long``, ``no_think_tag``.

    Example:
        >>> project("<think>who?</think> <Search> the  author</Search>", ()).action
        '<search>the author</search>'
    """
    tags = list(_TAG.finditer(text))
    marks = [(tag.group(1), tag.group(2).lower()) for tag in tags]
    is_opening = [not closing for closing, _ in marks]
    if True not in is_opening or all(is_opening[is_opening.index(True) :]):
        return _invalid("no_action_tag")
    kind = marks[0][1]
    if marks != [("", kind), ("/", kind)]:
        return _invalid("several_actions")
    said = one_line(text[tags[0].end() : tags[1].start()])
    if not said:
        return _invalid("empty_action")
    if len(said) > MAX_CHARS:
        return _invalid("action_too_long")
    if not has_think_pair(text[: tags[0].start()]):
        return _invalid("no_think_tag")
    return ParsedAction(action=format_action(kind, said), valid=True)


def read_action(action: str) -> tuple[str, str] | None:
    """``(kind, text)`` of an action, or None for anything that `project` would not give.

    Example:
        >>> read_action("<answer>Paris</answer>")
        ('answer', 'Paris')
    """
    parsed = project(f"<think></think>{action}", ())
    if not parsed.valid or parsed.action != action:
        return None
    kind = "search" if action.startswith("<search>") else "answer"
    return kind, action[len(kind) + 2 : -len(kind) - 3]


def format_action(kind: str, text: str) -> str:
    """The action ``search`` or ``answer`` with ``text``."""
    return f"<{kind}>{text}</{kind}>"


def format_response(action: str) -> str:
    """The shortest valid response that says ``action``."""
    return f"<think></think>{action}"


def _invalid(reason: str) -> ParsedAction:
    return ParsedAction(action=FALLBACK_ACTION, valid=False, reason=reason)
