"""One generated game inside TextWorld: the only file here that plays with it."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import textworld
from textworld import EnvInfos

# Not of ALFWorld alone: TextWorld keeps every fact it ever made.
from envs.alfworld.engine_patches import forget_old_facts
from envs.printable import printable

# Told after every command, with the number of moves in it: "> -= Kitchen =-0/2".
_STATUS_LINE = re.compile(r"\n*>\s+-= [^\n]*$")
_BLANK_LINES = re.compile(r"\n\s*\n+")
_INFOS = EnvInfos(
    admissible_commands=True,
    policy_commands=True,
    description=True,
    inventory=True,
    objective=True,
    max_score=True,
    score=True,
    won=True,
    lost=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What the game shows after starting or acting."""

    text: str
    commands: tuple[str, ...]
    """Legal commands, sorted."""
    solution: tuple[str, ...]
    """Commands that win from here; empty when there are none."""
    state: str
    """What is in sight and in hand, and the score; no move counter."""
    score: float
    """From 0 to 1, of the episode so far."""
    won: bool
    lost: bool


class Game:
    """A game file, loaded.

    Args:
        path: a ``.z8`` with its ``.json`` beside it.

    Raises:
        ValueError: the file does not hold a game.
    """

    def __init__(self, path: Path) -> None:
        forget_old_facts()
        self.path = path
        self.task = ""
        """The goal in words; known after `restart`."""
        try:
            # Jericho warns that it does not know the game; TextWorld itself keeps the score.
            with warnings.catch_warnings(action="ignore"):
                self._engine: Any = textworld.start(str(path), request_infos=_INFOS)
        except Exception as error:  # by whatever the broken file breaks first
            raise ValueError(
                f"textworld: {path} must hold a game, with its .json beside it, but loading it "
                f"failed with {type(error).__name__}: {error}. Generate it again."
            ) from error

    def restart(self) -> Scene:
        """Begin from the start."""
        with warnings.catch_warnings(action="ignore"):
            told = self._engine.reset()
        self.task = _tidy(told["objective"])
        return _scene(told, told["description"])

    def act(self, command: str) -> Scene:
        """Do one of the scene's commands."""
        told, _, _ = self._engine.step(command)
        return _scene(told, told["feedback"])

    def close(self) -> None:
        """Unload the game; harmless when called twice."""
        self._engine.close()


def _scene(told: Any, text: str) -> Scene:
    ended = bool(told["won"] or told["lost"])
    score = told["score"] / max(1, told["max_score"])
    sight = "\n".join(_tidy(told[part] or "") for part in ("description", "inventory"))
    return Scene(
        text=_tidy(text) or "(nothing)",
        commands=() if ended else tuple(sorted(set(told["admissible_commands"]))),
        solution=() if ended else tuple(told["policy_commands"] or ()),
        state=f"{sight}\nscore {score:g}",
        score=score,
        won=bool(told["won"]),
        lost=bool(told["lost"]),
    )


def _tidy(text: str) -> str:
    return _BLANK_LINES.sub("\n", _STATUS_LINE.sub("", printable(text))).strip()
