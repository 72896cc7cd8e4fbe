"""The deep part of the doctor: Ray, a worker, and every node of a cluster of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


def test_a_worker_has_the_plugin_and_the_node_reaches_itself(
    tiny_policy: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "megatron_agent.cli", "doctor", "--deep", "--json"]
    overrides = [f"actor_rollout_ref.model.path={tiny_policy}", f"run.dir={tmp_path / 'run'}"]
    done = subprocess.run(
        [*command, "experiment=frozenlake_cpu", *overrides],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    report = json.loads(done.stdout)
    (registration,) = [c for c in report["checks"] if c["name"] == "registration"]
    assert (registration["skipped"], registration["findings"]) == (None, []), done.stderr[-3000:]
    assert registration["elapsed_s"] > 1  # verl was imported, in two processes
    assert not (tmp_path / "run").exists()
