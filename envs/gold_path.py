"""Where an episode stands on a known solution of its game."""

from __future__ import annotations

from collections.abc import Sequence


class GoldPath:
    """Follows what is done, and knows what is left to do.

    After an action that is neither the path's next one nor harmless there is no more advice.

    Args:
        actions: they win from the start.
        harmless: beginnings of actions after which the rest of the path works as before.

    Example:
        >>> path = GoldPath(["open door", "move north"], harmless=("look",))
        >>> path.note("look around")
        >>> path.note("open door")
        >>> path.rest
        ('move north',)
    """

    def __init__(self, actions: Sequence[str], *, harmless: tuple[str, ...]) -> None:
        self._rest = tuple(actions)
        self._harmless = harmless

    @property
    def rest(self) -> tuple[str, ...]:
        """Actions from here to the end; empty at the end, and when the path is lost."""
        return self._rest

    def note(self, action: str) -> None:
        """Take note of an action that was carried out."""
        if action in self._rest[:1]:
            self._rest = self._rest[1:]
        elif not action.startswith(self._harmless):
            self._rest = ()
