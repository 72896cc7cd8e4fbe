"""One experiment inside ScienceWorld: the only file here that talks to its Java machine."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.jvm import java_packages
from envs.printable import printable

_NOT_UNDERSTOOD = "No known action matches that input."


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What the house shows after starting or acting."""

    text: str
    state: str
    """What is in sight and in hand, and what was achieved; no move counter."""
    score: float
    """From 0 to 1, of the episode so far; -1 after a mistake that ends it."""
    ended: bool
    understood: bool = True
    """Whether the last action was one."""


class Lab:
    """A house for one task at a time; any number of them may be open side by side. To be used again
    and again: the Java machine never frees one (5 to 15 MB).
    """

    def __init__(self) -> None:
        self._packages: Any = None
        self._java: Any = None
        self._variation = ("", 0, "")

    def load(self, task: str, variation: int, simplification: str) -> None:
        """Set up a variation of a task.

        Args:
            task: e.g. ``find-living-thing``.
            variation: which objects, rooms and substances.
            simplification: e.g. ``easy``; empty for none.

        Raises:
            EnvDataError: no Java.
        """
        packages = java_packages(_jar())
        if packages is not self._packages:  # the first time, and after the machine died
            self._packages = packages
            self._java = packages.scienceworld.runtime.pythonapi.PythonInterface()
        self._variation = task, variation, simplification
        self._java.load(*self._variation, False)

    def restart(self) -> Scene:
        """Begin from the start, with a look around, as the package does: it brings the points for
        what is so from the beginning.
        """
        self._java.reset()
        return self.act("look around")

    def act(self, action: str) -> Scene:
        """Say something; it costs no time when it is not understood."""
        return self._scene(self._java.step(action))

    def task(self) -> str:
        """What is to be done."""
        text = _tidy(self._java.freeActionTaskDesc())
        return text.removeprefix("Task Description:").strip()

    def gold_path(self) -> list[str]:
        """Actions that win; begins anew, and takes seconds."""
        self._java.load(*self._variation, True)
        return [str(action) for action in self._java.getGoldActionSequence()]

    def _scene(self, told: str) -> Scene:
        score = float(self._java.getScore())
        sight = _tidy(self._java.freeActionLook()), _tidy(self._java.freeActionInventory())
        return Scene(
            text=_tidy(told) or "(nothing)",
            state="\n".join([*sight, f"score {score:g}"]),
            score=score,
            ended=bool(self._java.getCompleted()) or score < 0,
            understood=told.strip() != _NOT_UNDERSTOOD,
        )


_IDLE: list[Lab] = []


def take_lab() -> Lab:
    """A house that nobody uses."""
    return _IDLE.pop() if _IDLE else Lab()


def give_back(lab: Lab) -> None:
    """Leave a house for the next session."""
    _IDLE.append(lab)


def solution(task: str, variation: int, simplification: str) -> list[str]:
    """Actions that win a variation from its start."""
    lab = take_lab()
    lab.load(task, variation, simplification)
    try:
        return lab.gold_path()
    finally:
        give_back(lab)


def _jar() -> Path:
    package = importlib.util.find_spec("scienceworld")
    assert package is not None and package.origin is not None
    return Path(package.origin).with_name("scienceworld.jar")


def _tidy(text: str) -> str:
    lines = [line.rstrip() for line in printable(text).strip().splitlines()]
    # Things in a list come in an order that depends on where Java put them in memory.
    blocks = itertools.groupby(lines, key=lambda line: line.startswith("\t"))
    return "\n".join(line for is_list, one in blocks for line in (sorted(one) if is_list else one))
