"""Runs one AppWorld task and obeys requests: a program for AppWorld's own Python.

It is started by its path, knows nothing of this project, and needs Python 3.11 and ``appworld``. A
process each, because AppWorld stops the clock and patches Python for the task that is open.
Requests and answers are lines of JSON on standard input and output::

    {"do": "open", "task_id": "82e2fac_1", "experiment": "...", "num_steps": 100, "step_s": 100}
    {"do": "run", "code": "print(apis.api_docs.show_app_descriptions())"}
    {"do": "judge"}
    -> {"ok": {...}}  or  {"error": "..."}

What code prints goes to standard error, where it does no harm.
"""

from __future__ import annotations

import json
import os
from typing import Any


class Worlds:
    """The task that is open, if any."""

    def __init__(self) -> None:
        self.world: Any = None

    def open(self, task_id: str, experiment: str, num_steps: int, step_s: int) -> dict[str, Any]:
        """Begin a task from its start."""
        from appworld import AppWorld

        self.close()
        self.world = AppWorld(
            task_id=task_id,
            experiment_name=experiment,
            max_interactions=num_steps,
            timeout_seconds=step_s,
        )
        person = dict(self.world.task.supervisor)
        names = ("first_name", "last_name", "email", "phone_number")
        return {
            "instruction": self.world.task.instruction,
            "supervisor": {name: str(person.get(name, "")) for name in names},
            "datetime": str(self.world.task.datetime),
        }

    def run(self, code: str) -> dict[str, Any]:
        """Run code in the task's shell."""
        text = self.world.execute(code)
        return {"text": str(text), "completed": bool(self.world.task_completed())}

    def judge(self) -> dict[str, Any]:
        """Let AppWorld's tests look at what was done."""
        tests = self.world.evaluate(suppress_errors=True).to_dict(stats_only=False)
        return {
            "success": bool(tests["success"]),
            "num_passed": len(tests["passes"]),
            "num_tests": int(tests["num_tests"]),
        }

    def close(self) -> dict[str, Any]:
        """End the task."""
        if self.world is not None:
            self.world.close()
        self.world = None
        return {}


def main() -> None:
    """Program entry."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # The agent's code runs in this process, and must neither read nor write here.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    worlds = Worlds()
    for line in requests:
        request = json.loads(line)
        operation = request.pop("do")
        try:
            answer = {"ok": getattr(worlds, operation)(**request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    worlds.close()


if __name__ == "__main__":
    main()
