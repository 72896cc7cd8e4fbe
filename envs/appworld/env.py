"""AppWorld: an everyday task ("split the bill with my flatmates"), done by writing Python against
the programming interfaces of nine apps.

Every session runs in a process of AppWorld's own Python (`envs.appworld.bridge`). The episode ends
when the agent calls ``apis.supervisor.complete_task()``; AppWorld's tests then judge what was done.
The step limit is the episode runner's (``env.max_steps``).
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Mapping
from typing import Any

from envs.appworld.actions import MAX_CHARS
from envs.appworld.process import AppWorldError, WorldProcess
from envs.appworld.tasks import DATASETS, NAME, data_root, find_python, task_ids
from envs.base import Observation, StepOutcome, TextEnv
from envs.data import DATA_OPTION
from envs.options import Option, is_number, one_of, resolve_options
from envs.printable import printable

_MAX_OUTPUT_CHARS = 6000
_NOTHING_YET = "Nothing was run yet."
_MAX_INTERACTIONS = 1000
_COMPLETE = "apis.supervisor.complete_task()"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


OPTION_RULES: Mapping[str, Option] = {
    "python": Option(
        default="",
        rule="a Python that has AppWorld installed, or empty for $APPWORLD_PYTHON",
        allows=_is_text,
    ),
    "data_dir": DATA_OPTION,
    "split": one_of(DATASETS, default="train"),
    "task_id": Option(
        default="",
        rule="the id of a task, such as 82e2fac_1, or empty to let the seed pick one",
        allows=_is_text,
    ),
    "deadline_s": Option(
        default=100.0,
        rule="a number above 0 (seconds for one request to AppWorld's process)",
        allows=lambda value: is_number(value) and value > 0,
    ),
}


def sample_action(rng: random.Random, observation: Observation) -> str:
    """Code that runs and does little, drawn with ``rng``; for random agents."""
    asked = ("show_app_descriptions()", "show_api_descriptions(app_name='supervisor')")
    return f"print(apis.api_docs.{rng.choice(asked)})"


class AppWorldEnv(TextEnv):
    """One task. The reward is 1 when all of AppWorld's tests pass; ``info`` has how many do.

    Example of an episode::

        env = AppWorldEnv()
        print(env.reset(seed=0).task)
        print(env.step("print(apis.api_docs.show_app_descriptions())").observation.text)
        print(env.step("apis.supervisor.complete_task()").reward)
        env.close()
    """

    def __init__(self) -> None:
        self._process: WorldProcess | None = None
        self._started_with: tuple[str, str] = ("", "")
        self._options: Mapping[str, Any] = {}
        self._task = self._task_id = ""
        self._text, self._ran = _NOTHING_YET, hashlib.blake2b(digest_size=16)
        self._done = True

    @property
    def done(self) -> bool:
        """Whether the episode is over, or none was started."""
        return self._done

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Open the task that the option names, or else the one that ``seed`` picks.

        Raises:
            ValueError: an option that cannot work, or no AppWorld (`EnvDataError`).
            AppWorldError: AppWorld did not open it.
        """
        resolved = resolve_options(NAME, OPTION_RULES, options)
        python, root = find_python(resolved), data_root(resolved, resolved["split"])
        task_id = resolved["task_id"]
        if not task_id:
            listed = task_ids(resolved, resolved["split"])
            task_id = listed[seed % len(listed)]
        self._done = True
        if self._process is None or self._started_with != (python, str(root)):
            self.close()
            self._process, self._started_with = WorldProcess(python, root), (python, str(root))
        self._options, self._task_id = resolved, task_id
        try:
            told = self._ask(
                "open",
                task_id=task_id,
                # AppWorld writes a folder for each task of an experiment: sessions need their own.
                experiment=f"megatron_agent-{os.getpid()}-{id(self)}",
                num_steps=_MAX_INTERACTIONS,
                step_s=int(max(1, resolved["deadline_s"] - 1)),
            )
        except AppWorldError:
            self.close()  # the next reset begins with a new process
            raise
        who = told["supervisor"]
        self._task = printable(
            f"{told['instruction']}\nYou act for {who['first_name']} {who['last_name']} "
            f"({who['email']}, {who['phone_number']}). It is {told['datetime']}."
        )
        self._text, self._ran = _NOTHING_YET, hashlib.blake2b(digest_size=16)
        self._done = False
        return self._observe()

    def step(self, action: str) -> StepOutcome:
        """Run code. Code that fails is a step like any other; what is no code at all is not valid.

        Raises:
            RuntimeError: no episode is running (never for what the agent said).
            AppWorldError: AppWorld's process ended, or is too slow.
        """
        if self._process is None:
            raise RuntimeError("appworld: no episode was started; call reset() first.")
        if self._done:
            raise RuntimeError("appworld: the episode is over; call reset() before step().")
        if not action.strip() or len(action) > MAX_CHARS or not _can_be_sent(action):
            return self._outcome({}, action_valid=False)
        try:
            ran = self._ask("run", code=action)
            verdict = self._ask("judge") if ran["completed"] else {}
        except AppWorldError:
            self.close()  # the next reset begins with a new process
            raise
        self._text = _cut(printable(ran["text"]).strip()) or "(no output)"
        # What is in the apps and in the shell follows from the code that was run.
        self._ran.update(f"{action}\0{self._text}\0".encode())
        self._done = bool(ran["completed"])
        return self._outcome(verdict)

    def close(self) -> None:
        """End AppWorld's process; harmless when called twice."""
        if self._process is not None:
            self._process.close()
        self._process, self._done = None, True

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        assert self._process is not None
        return self._process.ask(operation, deadline_s=self._options["deadline_s"], **arguments)

    def _outcome(self, verdict: Mapping[str, Any], *, action_valid: bool = True) -> StepOutcome:
        success = bool(verdict.get("success", False))
        return StepOutcome(
            observation=self._observe(),
            reward=float(success),
            terminated=self._done,
            truncated=False,
            action_valid=action_valid,
            info={
                "success": success,
                "task_id": self._task_id,
                "tests_passed": int(verdict.get("num_passed", 0)),
                "num_tests": int(verdict.get("num_tests", 0)),
            },
        )

    def _observe(self) -> Observation:
        return Observation(text=self._text, anchor=self._ran.hexdigest(), task=self._task)


def _can_be_sent(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def _cut(text: str) -> str:
    if len(text) <= _MAX_OUTPUT_CHARS:
        return text
    return f"{text[:_MAX_OUTPUT_CHARS].rstrip()} ... ({len(text)} characters in all)"
