"""From a response to code: ``<think>...</think><code>...</code>``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.base import ParsedAction
from envs.tags import FALLBACK_ACTION, has_think_pair

MAX_CHARS = 20_000
"""Of the code of one step."""
_TAG = re.compile(r"<(/?)code>", re.IGNORECASE)
_FENCE = re.compile(r"\A```(?:python|py)?[ \t]*\n(.*?)\n?```\Z", re.DOTALL)


def project(text: str, admissible: Sequence[str]) -> ParsedAction:
    """The code that the response gives, without a Markdown fence around it.

    Valid means: exactly one pair of ``code`` tags with something in it, after one closed
    ``<think>`` pair. Reasons otherwise, the first that applies: ``no_action_tag``,
    ``several_actions``, ``empty_action``, ``action_too_long``, ``no_think_tag``.

    Example:
        >>> project("<think>try</think><code>print(1)</code>", ()).action
        'print(1)'
    """
    tags = list(_TAG.finditer(text))
    kinds = ["close" if tag.group(1) else "open" for tag in tags]
    if "open" not in kinds or "close" not in kinds[kinds.index("open") :]:
        return _invalid("no_action_tag")
    if kinds != ["open", "close"]:
        return _invalid("several_actions")
    code = text[tags[0].end() : tags[1].start()].strip()
    fenced = _FENCE.match(code)
    code = fenced[1].strip() if fenced else code
    if not code:
        return _invalid("empty_action")
    if len(code) > MAX_CHARS:
        return _invalid("action_too_long")
    if not has_think_pair(text[: tags[0].start()]):
        return _invalid("no_think_tag")
    return ParsedAction(action=code, valid=True)


def format_response(action: str) -> str:
    """The shortest valid response that gives the code ``action``."""
    return f"<think></think><code>{action}</code>"


def _invalid(reason: str) -> ParsedAction:
    return ParsedAction(action=FALLBACK_ACTION, valid=False, reason=reason)
