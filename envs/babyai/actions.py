"""From a response to an action of the grid world."""

from __future__ import annotations

from envs.tags import parse_think_action as project

__all__ = ["project"]
