"""From a response to a legal action of the hand."""

from __future__ import annotations

from collections.abc import Sequence

from envs.base import ParsedAction
from envs.tags import parse_think_action


def project(text: str, admissible: Sequence[str]) -> ParsedAction:
    """The action that the response names in its tags; see `envs.tags.parse_think_action` for the
    reasons.

    Example:
        >>> project("<think>low</think><action>HIT</action>", ("hit", "stand")).action
        'hit'
    """
    return parse_think_action(text, admissible)
