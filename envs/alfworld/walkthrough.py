"""Where an episode stands on the game's walkthrough, and how to get back to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_HARMLESS = ("look", "inventory", "examine ")
"""Commands after which the rest of the walkthrough works as before."""


class WalkthroughGuide:
    """Follows what is done, and knows what is left to do.

    Walking elsewhere, looking at things and opening them does no harm: the guide leads back. After
    anything else that is not the walkthrough's next command it has no more advice.

    Args:
        walkthrough: commands that win from the start.

    Example:
        >>> guide = WalkthroughGuide(["go to desk 1", "take pen 1 from desk 1"])
        >>> guide.note("go to desk 1")
        >>> guide.note("go to bed 1")
        >>> guide.plan(["go to desk 1", "look"])
        ['go to desk 1', 'take pen 1 from desk 1']
    """

    def __init__(self, walkthrough: Sequence[str]) -> None:
        self._walkthrough = tuple(walkthrough)
        self._num_done = 0
        self._is_away = False
        self._is_lost = not self._walkthrough
        self._opened: set[str] = set()

    def note(self, command: str) -> None:
        """Take note of a command that was carried out."""
        if self._is_lost:
            return
        if not self._is_away and command == self._next_command():
            self._num_done += 1
        elif command.startswith("go to "):
            # It may be just where the walkthrough goes next.
            self._is_away = command != self._next_command()
            self._num_done += not self._is_away
        elif command.startswith("open "):
            self._opened.add(command)
        elif not command.startswith(_HARMLESS):
            self._is_lost = True

    def plan(self, admissible: Collection[str]) -> list[str]:
        """Commands from here to the goal; empty when there are none or none are known.

        Args:
            admissible: commands that are legal now.
        """
        rest = list(self._walkthrough[self._num_done :])
        if self._is_lost or not rest:
            return []
        if self._is_away and not rest[0].startswith("go to "):
            walks = [
                command
                for command in self._walkthrough[: self._num_done]
                if command.startswith("go to ")
            ]
            rest = [*walks[-1:], *rest]
        rest = [command for command in rest if command not in self._opened]
        # Several things can stand in one place: whoever is at one need not, and cannot, go there.
        if rest and rest[0].startswith("go to ") and rest[0] not in admissible:
            rest = rest[1:]
        return rest

    def _next_command(self) -> str:
        done = self._num_done
        return self._walkthrough[done] if done < len(self._walkthrough) else ""
