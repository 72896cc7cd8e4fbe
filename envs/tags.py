"""Parsing of ``<think>...</think><action>...</action>`` responses, shared by the text environments.

A response is untrusted text of any length: the parser is a single linear pass over its tags and
never raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.base import ParsedAction

_ACTION_TAG = re.compile(r"<(/?)action>", re.IGNORECASE)
_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE)

FALLBACK_ACTION = ""
"""Sent to the environment when nothing valid was said; environments treat it as an illegal
action."""


def parse_think_action(
    text: str, admissible: Sequence[str], require_think: bool = True
) -> ParsedAction:
    """Read the one action a response names.

    Valid means: exactly one ``<action>`` pair, an admissible action in it (case and surrounding
    blanks do not matter), and, unless ``require_think`` is False, one closed ``<think>`` pair
    before it. The reason of an invalid one is the first that applies of ``no_action_tag``,
    ``several_actions``, ``empty_action``, ``not_admissible``, ``no_think_tag``.

    Args:
        text: decoded response.
        admissible: legal actions; empty when the environment does not enumerate them, then any text
            is one.

    Example:
        >>> parse_think_action("<think>go</think><action> Left </action>", ["left", "right"]).action
        'left'
        >>> parse_think_action("left", ["left"]).reason
        'no_action_tag'
    """
    tags = list(_ACTION_TAG.finditer(text))
    kinds = ["close" if tag.group(1) else "open" for tag in tags]
    if "open" not in kinds or "close" not in kinds[kinds.index("open") :]:
        return _invalid("no_action_tag")
    if kinds != ["open", "close"]:
        return _invalid("several_actions")
    said = text[tags[0].end() : tags[1].start()].strip()
    if not said:
        return _invalid("empty_action")
    action = _match(said, admissible)
    if action is None:
        return _invalid("not_admissible")
    if require_think and not has_think_pair(text[: tags[0].start()]):
        return _invalid("no_think_tag")
    return ParsedAction(action=action, valid=True)


def format_response(action: str) -> str:
    """The shortest valid response that says ``action``, as a demonstration for learning from.

    Example:
        >>> format_response("left")
        '<think></think><action>left</action>'
    """
    return f"<think></think><action>{action}</action>"


def _match(said: str, admissible: Sequence[str]) -> str | None:
    if not admissible:
        return said
    folded = said.casefold()
    return next((action for action in admissible if action.casefold() == folded), None)


def has_think_pair(before_action: str) -> bool:
    """Whether the text has exactly one ``<think>`` pair, opened and closed."""
    return [tag.group(1) for tag in _THINK_TAG.finditer(before_action)] == ["", "/"]


def _invalid(reason: str) -> ParsedAction:
    return ParsedAction(action=FALLBACK_ACTION, valid=False, reason=reason)
