"""Where an episode stands on a known solution of its game."""

from __future__ import annotations

from collections.abc import Callable, Sequence


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


class LazyGoldPath:
    """A gold path that is found when it is asked for: to solve a game takes longer than to play it.

    Args:
        solve: gives the actions that win from the start.
        harmless: as of `GoldPath`.

    Example:
        >>> path = LazyGoldPath(lambda: ["open door", "move north"], harmless=())
        >>> path.note("open door")
        >>> path.rest
        ('move north',)
    """

    def __init__(self, solve: Callable[[], Sequence[str]], *, harmless: tuple[str, ...]) -> None:
        self._solve, self._harmless = solve, harmless
        self._path: GoldPath | None = None
        self._done_so_far: list[str] = []

    @property
    def rest(self) -> tuple[str, ...]:
        """Actions from here to the end; empty at the end, and when the path is lost."""
        if self._path is None:
            self._path = GoldPath(self._solve(), harmless=self._harmless)
            for action in self._done_so_far:
                self._path.note(action)
        return self._path.rest

    def note(self, action: str) -> None:
        """Take note of an action that was carried out."""
        if self._path is None:
            self._done_so_far.append(action)
        else:
            self._path.note(action)
