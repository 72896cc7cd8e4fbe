"""Runs of the whole stack for the stack tier: one tiny policy, one helper to start training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from megatron_agent.backend.cpu.prefork.launch import (
    SOCKET,
    server_environment,
    wait_for_server,
)
from megatron_agent.backend.cpu.prefork.protocol import PYTHON_VARIABLE

REPO_ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 900


@pytest.fixture(scope="session")
def standing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a process that is forked from one server for the whole session: its
    imports, most of a short run, are done once. `TrainingRun` starts its driver so, too.
    """
    folder = tmp_path_factory.mktemp("prefork")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "megatron_agent.backend.cpu.prefork.serve", str(folder)],
            cwd=REPO_ROOT,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
        wait_for_server(folder / SOCKET, timeout_s=START_TIMEOUT_S)
        assert server.poll() is None, (folder / "log").read_text()[-3000:]
        yield server_environment(folder)
        assert server.stdin is not None
        server.stdin.close()
        server.wait(timeout=60)


@dataclass
class TrainingRun:
    """A run folder and the means to start it (again)."""

    folder: Path
    overrides: tuple[str, ...]
    environment: dict[str, str]
    program: tuple[str, ...] = ("-m", "megatron_agent.train")

    @property
    def python(self) -> str:
        """What starts the driver."""
        return self.environment.get(PYTHON_VARIABLE, sys.executable)

    def start(self) -> subprocess.Popen[bytes]:
        """Start ``megatron_agent.train`` in a process of its own; output goes to the run folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "output.log").open("ab") as log:
            return subprocess.Popen(
                [self.python, *self.program, *self.overrides],
                cwd=REPO_ROOT,
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def finish(self) -> int:
        """Start and wait; returns the exit code."""
        process = self.start()
        try:
            return process.wait(timeout=START_TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def output(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of ``metrics.jsonl`` that belong to training steps."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in map(json.loads, lines) if "train/rows" in line]

    def evaluated_steps(self) -> list[int]:
        """Steps with an evaluation in ``metrics.jsonl``, in the order of writing."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [
            line["step"]
            for line in map(json.loads, lines)
            if any(name.startswith("val-") for name in line)
        ]

    def episodes(self) -> list[dict[str, Any]]:
        """All journal lines of all agent-loop processes."""
        files = sorted((self.folder / "episodes").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def tasks_by_step(self) -> dict[int, list[str]]:
        """Training tasks of each step, sorted: what the data order gave the step."""
        tasks: dict[int, set[str]] = {}
        for episode in self.episodes():
            if episode["split"] == "train":
                tasks.setdefault(episode["global_step"], set()).add(episode["task_id"])
        return {step: sorted(names) for step, names in tasks.items()}

    def wait_for(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        """Wait until something about the run is true; fails when the run ends first."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            assert process.poll() is None, f"the run ended early:\n{self.output()[-3000:]}"
            assert time.monotonic() < deadline, f"waited in vain:\n{self.output()[-3000:]}"
            time.sleep(0.2)


@pytest.fixture
def training_run(
    tmp_path: Path,
    tiny_policy: Path,
    small_run: tuple[str, ...],
    request: pytest.FixtureRequest,
) -> Callable[..., TrainingRun]:
    """Makes small runs: 2 groups of 3 sessions, 3 steps an episode. With ``alone=True`` the command
    is the one that a user types, with a server of its own.
    """

    def make(
        name: str,
        *overrides: str,
        script: str = "",
        arguments: tuple[str, ...] = (),
        alone: bool = False,
        **environment: str,
    ) -> TrainingRun:
        folder = tmp_path / name
        shared = {} if alone else request.getfixturevalue("standing_server")
        program = (
            (str(REPO_ROOT / script), *arguments) if script else ("-m", "megatron_agent.train")
        )
        return TrainingRun(
            folder=folder,
            overrides=(
                "experiment=frozenlake_cpu",
                f"run.dir={folder}",
                f"actor_rollout_ref.model.path={tiny_policy}",
                *small_run,
                "trainer.save_freq=-1",
                "trainer.total_training_steps=2",
                *overrides,
            ),
            environment={**shared, **environment},
            program=program,
        )

    return make
