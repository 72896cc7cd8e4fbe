"""One game inside TextWorldExpress: the only file here that talks to its Java machine."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.jvm import java_packages
from envs.printable import printable


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What the game shows after starting or acting."""

    text: str
    actions: tuple[str, ...]
    """Legal actions, sorted."""
    state: str
    """What is in sight and in hand, and what was achieved; no move counter."""
    score: float
    """From 0 to 1, of the episode so far; a mistake can take it back."""
    won: bool
    lost: bool


class Game:
    """A game of one kind; any number of them may be played at the same time.

    Args:
        kind: e.g. ``coin``.
        parameters: of the game's generator, e.g. ``{"numLocations": 5}``.

    Raises:
        ValueError: the generator refuses the parameters, in its own words.
        EnvDataError: no Java.
    """

    def __init__(self, kind: str, parameters: Mapping[str, int]) -> None:
        self._java: Any = java_packages(_jar()).textworldexpress.runtime.PythonInterface()
        given = ",".join(f"{name}={value}" for name, value in sorted(parameters.items()))
        refusal = self._java.load(kind, given)
        if refusal:
            raise ValueError(
                f"option 'params' of environment 'textworld_express' must suit the game {kind!r}, "
                f"got {dict(parameters)!r}. {refusal.strip()}"
            )

    def start(self, seed: int, fold: str) -> Scene:
        """Draw a game and begin it."""
        return _scene(self._java.generateNewGameJSON(seed, fold, False))

    def act(self, action: str) -> Scene:
        """Do one of the scene's actions."""
        return _scene(self._java.stepJSON(action))

    def task(self) -> str:
        """What is to be done; known after `start`."""
        return str(self._java.getTaskDescription()).strip()

    def gold_path(self, seed: int, fold: str) -> list[str]:
        """Actions that win, each of them legal; plays the game, which takes up to 0.2 s."""
        self._java.generateNewGameJSON(seed, fold, True)
        solution = [str(action) for action in self._java.getGoldActionSequence()]
        scene, legal = self.start(seed, fold), []
        for action in solution:
            # Some open what is open, which the game refuses, or go on after the end.
            if action in scene.actions and not scene.won:
                scene = self.act(action)
                legal.append(action)
        return legal


def _jar() -> Path:
    package = importlib.util.find_spec("textworld_express")
    assert package is not None and package.origin is not None
    return Path(package.origin).with_name("textworld-express.jar")


def _scene(answer: str) -> Scene:
    told = json.loads(answer)
    text = _tidy(told["observation"])
    # What Simon says is all there is to see in his game.
    place = "\n".join(filter(None, [_tidy(told["look"]), _tidy(told["inventory"])])) or text
    return Scene(
        text=text or "(nothing)",
        actions=tuple(sorted(set(told["validActions"]))),
        state=f"{place}\nscore {told['score']:g}",
        score=float(told["score"]),
        won=bool(told["tasksuccess"]),
        lost=bool(told["taskfailure"]),
    )


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in printable(text).strip().splitlines())
