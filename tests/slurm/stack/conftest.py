"""Runs of the whole stack under sbatch: how to submit one, and how to look at what it wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from megatron_agent.ledger import (
    Admitted,
    Ledger,
    LedgerReport,
    check_ledger,
    effective_events,
    read_ledger,
)

PATIENCE_S = 900


@dataclass
class StackRun:
    """One run folder and the job that fills it: two groups of three sessions a step, a checkpoint
    after each.
    """

    job: Any
    policy: Path
    small_run: tuple[str, ...]

    @property
    def folder(self) -> Path:
        folder: Path = self.job.folder / "run"
        return folder

    def submit(
        self, *overrides: str, num_nodes: int = 1, script: str = "train_gigpo.sbatch"
    ) -> None:
        self.job.submit(
            f"--nodes={num_nodes}",
            script=script,
            command=(
                "configs/experiment/frozenlake_cpu.yaml",
                f"run.dir={self.folder}",
                f"actor_rollout_ref.model.path={self.policy}",
                *self.small_run,
                "trainer.save_freq=1",
                *overrides,
            ),
            MA_OBJECT_STORE_BYTES="",
        )

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of training steps, in the order of writing."""
        return [line for line in _json_lines(self.folder / "metrics.jsonl") if "train/rows" in line]

    def steps(self) -> list[int]:
        return [line["step"] for line in self.metrics()]

    def checkpoint(self, step: int) -> Path:
        folder: Path = self.folder / "checkpoints" / f"global_step_{step}"
        return folder

    def has_checkpoint(self, step: int) -> bool:
        return (self.checkpoint(step) / "COMPLETE").is_file()

    def num_played(self, step: int) -> int:
        """Training episodes of a step that have ended, over all attempts."""
        files = (self.folder / "episodes").glob("*.jsonl")
        lines = (line for file in files for line in _json_lines(file))
        return sum(line["global_step"] == step and line["split"] == "train" for line in lines)

    def num_evaluated(self) -> int:
        """Held-out episodes that have ended."""
        files = (self.folder / "episodes").glob("*.jsonl")
        return sum(line["split"] == "eval" for file in files for line in _json_lines(file))

    def num_admissions(self, step: int) -> int:
        """How often the tasks of a step were handed to the rollout, over all attempts."""
        lines = _json_lines(Ledger(self.folder).path)
        return sum(line["kind"] == "admitted" and line["step"] == step for line in lines)

    def tasks_by_step(self) -> dict[int, list[str]]:
        """The tasks that the newest weights have seen, in data order."""
        events = effective_events(read_ledger(Ledger(self.folder).path))
        return {e.step: list(e.groups.values()) for e in events if isinstance(e, Admitted)}

    def ledger(self) -> LedgerReport:
        return check_ledger(read_ledger(Ledger(self.folder).path))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Look often: the phases of a tiny policy are short."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain:\n{self.job.log()[-5000:]}"
            time.sleep(0.05)

    def assert_complete(self, num_steps: int, *, restarts: int) -> None:
        """The job is done; each step has its metrics once, and no task was lost or taken twice."""
        state = self.job.wait_for_end()
        log = self.job.log()[-8000:]
        assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), log
        assert state["Restarts"] == str(restarts), log
        assert self.steps() == list(range(1, num_steps + 1)), log
        report = self.ledger()
        assert report.problems == (), report.text
        assert (report.last_step, report.num_trained) == (num_steps, 2 * num_steps)
        assert report.num_open == 0
        assert self.has_checkpoint(num_steps)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a file that may be being written."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@pytest.fixture
def run(job: Any, tiny_policy: Path, small_run: tuple[str, ...]) -> StackRun:
    return StackRun(job, tiny_policy, small_run)
