"""An environment that does what it is told: hang, die, raise, lie. A plugin for pool tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from envs.base import Observation, ParsedAction, PromptContext, StepOutcome, TextEnv
from envs.options import Option, resolve_options
from envs.registry import EnvSpec

STARTS = ("fixed", "random", "raise", "hang", "first_hangs", "nap", "no_anchor")
OPTION_RULES = {
    "start": Option(
        default="fixed",
        rule=f"one of {', '.join(STARTS)}",
        allows=lambda value: value in STARTS,
    ),
    "record": Option(
        default="",
        rule="a file to note resets and steps in, or empty",
        allows=lambda value: isinstance(value, str),
    ),
}


class Troublemaker(TextEnv):
    """Counts its steps; the action says what goes wrong."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._record = ""
        self._leak: list[bytearray] = []

    def note(self, event: str) -> None:
        if self._record:
            with open(self._record, "ab", buffering=0) as file:
                file.write(f"{event}\n".encode())

    def _is_first(self) -> bool:
        """Of all processes: exactly one of them can make the file."""
        try:
            os.close(os.open(self._record + ".first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        resolved = resolve_options("troublemaker", OPTION_RULES, options)
        start, self._record = resolved["start"], resolved["record"]
        is_first = start == "first_hangs" and self._is_first()
        self.note("reset begins")
        if start == "raise":
            raise OSError("no such level")
        if start == "hang" or is_first:
            time.sleep(3600)
        if start == "nap":
            time.sleep(0.3)
        self._num_steps = 0
        anchor: Any = f"seed {seed}"
        if start == "random":
            anchor = os.urandom(8).hex()
        if start == "no_anchor":
            anchor = None
        self.note("reset ends")
        return Observation(text="start", anchor=anchor)

    def step(self, action: str) -> StepOutcome:
        self.note(f"step {action}")
        if action == "hang":
            time.sleep(3600)
        if action == "nap":
            time.sleep(0.2)
        if action == "die":
            os._exit(3)
        if action == "raise":
            raise ZeroDivisionError("the level is broken")
        if action == "exit":
            sys.exit("the level wants out")
        if action == "print":
            sys.stdout.write("chatter on stdout\n")
            sys.stdout.flush()
        if action == "garbage":
            os.write(int(sys.argv[1]), b"\xff" * 64)
        if action == "leak":
            for _ in range(60):  # 600 MiB at most, in case that nobody looks
                self._leak.append(bytearray(os.urandom(2**10) * (10 * 2**10)))
                time.sleep(0.02)
            time.sleep(3600)
        if action == "spawn":
            child = subprocess.Popen(["sleep", "3600"])
            self._num_steps = child.pid - 1  # told as the number of the step
        if action == "odd" and os.path.exists(self._record):
            self._num_steps += os.getpid()
        if action == "wrong type":
            return "not an outcome"  # type: ignore[return-value]
        self._num_steps += 1
        return StepOutcome(
            observation=Observation(text=f"step {self._num_steps}", anchor=self._num_steps),
            reward=float("nan") if action == "nan" else 1.0,
            terminated=False,
            truncated=False,
            info={"success": True, "odd": object, "pid": os.getpid()},
        )


def build_prompt(context: PromptContext) -> str:
    return context.observation.text


def project(text: str, admissible: Sequence[str]) -> ParsedAction:
    return ParsedAction(action=text, valid=True)


SPEC = EnvSpec(
    name="troublemaker",
    description="Does what it is told.",
    make=Troublemaker,
    build_prompt=build_prompt,
    project=project,
    option_rules=OPTION_RULES,
)
