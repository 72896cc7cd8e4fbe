"""From a response to one of the game's actions."""

from __future__ import annotations

from envs.tags import parse_think_action as project

__all__ = ["project"]
