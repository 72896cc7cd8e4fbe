"""From a response to one of the shop's two actions, ``search[words]`` and ``click[what]``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.base import ParsedAction
from envs.printable import one_line
from envs.tags import FALLBACK_ACTION, parse_think_action

MAX_QUERY_CHARS = 500
_COMMAND = re.compile(r"(search|click)\s*\[(.*)\]", re.IGNORECASE | re.DOTALL)


def project(text: str, admissible: Sequence[str]) -> ParsedAction:
    """The action that the response names in its tags.

    A click must be one of ``admissible``. A search may have any words, where ``admissible`` has a
    search at all (then the page has a search bar). Reasons beside those of
    `envs.tags.parse_think_action`: ``empty_query``, ``query_too_long``.

    Example:
        >>> page = ("search[a red shirt]",)
        >>> project("<think></think><action>Search[Red  shirt]</action>", page).action
        'search[Red shirt]'
        >>> project("<think></think><action>click[buy now]</action>", page).reason
        'not_admissible'
    """
    said = parse_think_action(text, ())
    if not said.valid:
        return said
    action, reason = read_action(said.action, admissible)
    if reason:
        return ParsedAction(action=FALLBACK_ACTION, valid=False, reason=reason)
    return ParsedAction(action=action, valid=True)


def read_action(said: str, admissible: Sequence[str]) -> tuple[str, str]:
    """``(action, "")``, spelled as the shop spells it, or ``("", reason)`` for one that is not
    legal now.
    """
    command = _COMMAND.fullmatch(said.strip())
    if command is None:
        return "", "not_admissible"
    kind, argument = command.group(1).lower(), one_line(command.group(2))
    if kind == "click":
        wanted = f"click[{argument}]".casefold()
        action = next((action for action in admissible if action.casefold() == wanted), "")
        return action, "" if action else "not_admissible"
    if not has_search_bar(admissible):
        return "", "not_admissible"
    if not argument:
        return "", "empty_query"
    if len(argument) > MAX_QUERY_CHARS:
        return "", "query_too_long"
    return f"search[{argument}]", ""


def has_search_bar(admissible: Sequence[str]) -> bool:
    """Whether the page takes a search."""
    return any(action.startswith("search[") for action in admissible)


def argument_of(action: str) -> str:
    """What stands in the brackets of an action as the shop spells it.

    Example:
        >>> argument_of("click[buy now]")
        'buy now'
    """
    return action[action.index("[") + 1 : -1]
