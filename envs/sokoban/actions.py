"""From a response to one of Sokoban's four moves."""

from __future__ import annotations

from collections.abc import Sequence

from envs.base import ParsedAction
from envs.tags import parse_think_action


def project(text: str, admissible: Sequence[str]) -> ParsedAction:
    """The move that the response names in its tags; see `envs.tags.parse_think_action` for the
    reasons.

    Example:
        >>> project("<think>push</think><action>Up</action>", ("up", "down")).action
        'up'
    """
    return parse_think_action(text, admissible)
