"""From a response to one of the game's commands."""

from __future__ import annotations

from collections.abc import Sequence

from envs.base import ParsedAction
from envs.tags import parse_think_action


def project(text: str, admissible: Sequence[str]) -> ParsedAction:
    """The command that the response names in its tags; see `envs.tags.parse_think_action` for the
    reasons.

    Example:
        >>> said = "<think>there</think><action>Go to desk 1</action>"
        >>> project(said, ("go to desk 1", "look")).action
        'go to desk 1'
    """
    return parse_think_action(text, admissible)
