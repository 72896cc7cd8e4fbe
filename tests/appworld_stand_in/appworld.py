"""Stands in for the package of that name: as much of its public interface as our bridge uses.

Written after appworld 0.1.3.post1. The task is to complete with the answer that the app ``vault``
tells; ``apis.fault`` does what must not happen.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
import traceback
from types import SimpleNamespace
from typing import Any

TASKS = {"a1_1": 7, "a1_2": 8, "b2_1": 9}


class AppWorld:
    """One task."""

    def __init__(
        self,
        task_id: str,
        experiment_name: str = "default",
        max_interactions: int = 1000,
        timeout_seconds: int | None = 100,
    ) -> None:
        assert os.path.isdir(os.path.join(os.environ["APPWORLD_ROOT"], "data"))
        if task_id not in TASKS:
            raise Exception(f"The task {task_id} doesn't exist.")
        supervisor = {
            "first_name": "Ada",
            "last_name": "Byron",
            "email": "ada@mail.com",
            "phone_number": "555",
        }
        self.task = SimpleNamespace(
            instruction="What is in the vault?", supervisor=supervisor, datetime="2023-05-18 12:00"
        )
        self.secret = TASKS[task_id]
        self.answer: Any = None
        self.is_complete = False
        docs = SimpleNamespace(
            show_app_descriptions=lambda: [{"name": "vault"}],
            show_api_descriptions=lambda app_name: [{"name": "show"}],
        )
        fault = SimpleNamespace(end=lambda: os._exit(3), sleep=lambda: time.sleep(60))
        apis = SimpleNamespace(
            api_docs=docs,
            vault=SimpleNamespace(show=lambda: self.secret),
            supervisor=SimpleNamespace(complete_task=self._complete),
            fault=fault,
        )
        self.names: dict[str, Any] = {"apis": apis}

    def _complete(self, answer: Any = None) -> None:
        self.answer, self.is_complete = answer, True

    def execute(self, code: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(code, self.names)  # noqa: S102 - this is what the package does
            except Exception:
                return f"Execution failed. Traceback:\n{traceback.format_exc(limit=0)}"
        return printed.getvalue() or "Execution successful."

    def task_completed(self) -> bool:
        return self.is_complete

    def evaluate(self, suppress_errors: bool = True) -> TestTracker:
        return TestTracker([self.is_complete, self.answer == self.secret])

    def close(self) -> None:
        self.names.clear()


class TestTracker:
    """What the tests of a task say."""

    def __init__(self, results: list[bool]) -> None:
        self.results = results

    def to_dict(self, stats_only: bool = False) -> dict[str, Any]:
        tests = [{"requirement": "r", "label": "no_op_fail"} for _ in self.results]
        return {
            "success": all(self.results),
            "difficulty": 1,
            "num_tests": len(tests),
            "passes": [test for test, passed in zip(tests, self.results, strict=True) if passed],
            "failures": [
                test for test, passed in zip(tests, self.results, strict=True) if not passed
            ],
        }
