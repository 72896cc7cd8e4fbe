"""One ALFWorld game inside TextWorld's PDDL engine: the only file here that imports TextWorld."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alfworld.agents.utils.misc import Demangler
from textworld import EnvInfos
from textworld.envs.pddl.pddl import PddlEnv

from envs.alfworld.engine_patches import apply_patches, forget_old_facts

_STATE_FACTS = frozenset(
    {
        "atlocation",
        "holds",
        "inreceptacle",
        "iscool",
        "isclean",
        "ishot",
        "ison",
        "issliced",
        "istoggled",
        "opened",
    }
)
"""What actions change and later actions or the goal depend on. ``checked``, ``examined`` and the
like only record what was looked at; the rest follows from these or never changes."""

_IDLE: list[Any] = []
"""Engines of closed games. Each holds a library of its own that cannot be unloaded safely (closing
it crashed the process), but that can load the next game."""

_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_TASK_MARK = "Your task is to:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What the engine shows after loading, restarting or acting."""

    text: str
    commands: tuple[str, ...]
    """Legal commands, sorted; ``help`` is left out, since it says nothing about the game."""
    won: bool


class Game:
    """A game file, loaded. Not for several threads.

    Args:
        path: a ``game.tw-pddl``.

    Raises:
        ValueError: the file does not hold a game.
    """

    def __init__(self, path: Path) -> None:
        apply_patches()
        forget_old_facts()
        self.path = path
        self._engine: Any = (
            _IDLE.pop() if _IDLE else PddlEnv(EnvInfos(won=True, admissible_commands=True))
        )
        with _own_argv():
            try:
                self._engine.load(str(path))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self.close()
                raise ValueError(
                    f"alfworld: {path} must hold an ALFWorld game, but loading it failed with "
                    f"{type(error).__name__}: {error}. Download it again."
                ) from error
        # "Drawer_bar__minus_03_dot_48_bar_..." becomes "drawer 3", numbered by place.
        names = Demangler(game_infos=self._engine._entity_infos, shuffle=False)
        for info in self._engine._entity_infos.values():
            info.name = names.demangle_alfred_name(info.id)
        self.walkthrough: tuple[str, ...] = tuple(self._engine.walkthrough or ())
        """Commands that win from the start, as the file has them; empty when it has none."""
        self.task = ""
        """The goal in words, e.g. ``put a mug in desk.``; known after the first `restart`."""
        self._start_facts: frozenset[str] = frozenset()

    def restart(self) -> Scene:
        """Begin from the start; cheap when the game was loaded before in this process."""
        with _own_argv():
            state = self._engine.reset()
        text, _, self.task = state.feedback.removeprefix(_BANNER).partition(_TASK_MARK)
        self.task = self.task.strip()
        self._start_facts = frozenset(self._facts())
        return self._scene(text, state)

    def act(self, command: str) -> Scene:
        """Do one of the scene's commands."""
        state, _, _ = self._engine.step(command)
        return self._scene(state.feedback, state)

    def state_text(self) -> str:
        """The state in canonical form: where the agent is, and what differs from the start.

        Two visits of one state give one text, whatever was done or looked at in between. Doors and
        drawers that stand open elsewhere are left out: they cost a later visitor one step, and two
        searches that opened different ones would never be in one state again.
        """
        facts = set(self._facts())
        here = {fact for fact in facts if fact.startswith("atlocation")}
        start = {fact for fact in self._start_facts if not fact.startswith("atlocation")}
        gained = sorted(f"+ {fact}" for fact in facts - start - here)
        lost = sorted(f"- {fact}" for fact in start - facts)
        return "\n".join([*sorted(here), *gained, *lost])

    def close(self) -> None:
        """Give the engine back; harmless when called twice."""
        if self._engine is not None:
            _IDLE.append(self._engine)
        self._engine = None

    def _facts(self) -> Iterator[str]:
        infos = self._engine._entity_infos
        facts = list(self._engine._pddl_state.facts)
        agent_at = {fact.arguments[1].name for fact in facts if fact.name == "atlocation"}
        within_reach = {
            fact.arguments[0].name
            for fact in facts
            if fact.name == "receptacleatlocation" and fact.arguments[1].name in agent_at
        }
        for fact in facts:
            if fact.name not in _STATE_FACTS:
                continue
            if fact.name == "opened" and fact.arguments[0].name not in within_reach:
                continue
            things = (infos[thing.name] for thing in fact.arguments)
            yield f"{fact.name} " + ", ".join((thing.name or thing.id).strip() for thing in things)

    def _scene(self, text: str, state: Any) -> Scene:
        commands = tuple(text for text in state["admissible_commands"] if text != "help")
        return Scene(text=text.strip(), commands=commands, won=bool(state["won"]))


@contextmanager
def _own_argv() -> Iterator[None]:
    """Fast Downward's translator overwrites ``sys.argv``; nobody else should see that."""
    before = sys.argv
    try:
        yield
    finally:
        sys.argv = before
