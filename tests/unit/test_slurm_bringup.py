"""The benchmark of bring-up says by its exit code whether the jobs did what it measured."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.unit

GOOD = """[02:13:29 +0s] job 1 (with-ray), attempt 0, on node[1-2]
node1 joined after 4.1 s (1 of 2)
node2 joined after 7.9 s (2 of 2)
[02:13:37 +8s] all 2 node(s) joined
[02:13:40 +11s] the driver has ended with exit code 0
"""


@pytest.fixture
def bringup(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "slurm_bringup", repo_root / "benchmarks" / "slurm_bringup.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "cluster", lambda _: nullcontext({}))
    monkeypatch.setattr("sys.argv", ["slurm_bringup.py", "--nodes", "2,4"])
    return module


@pytest.mark.parametrize(
    ("second", "exit_code"),
    [
        (GOOD, 0),
        (GOOD.replace("code 0", "code 71"), 1),
        ("error: missing after 600 s: node3\n", 1),
    ],
)
def test_a_job_that_failed_is_told_and_the_others_are_measured(
    bringup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys, second: str, exit_code: int
) -> None:
    logs = {2: second, 4: GOOD}
    monkeypatch.setattr(bringup, "measure", lambda number, *_: bringup._phases(logs[number], {}))
    assert bringup.main() == exit_code
    first, last = capsys.readouterr().out.split("2 nodes: ")[1].split("4 nodes: ")
    assert first.startswith("failed:") == bool(exit_code)
    assert last.startswith("head 4, last node 8, driver starts 8, driver ended 11")


def test_a_job_that_does_not_end_is_told(
    bringup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text("it hangs")
    answer = type("Answer", (), {"stdout": "7\n"})
    monkeypatch.setattr(bringup.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(bringup, "PATIENCE_S", -1)
    options = type("Options", (), {"stack": False})
    with pytest.raises(bringup.JobFailedError, match="job 7 does not end:\nit hangs"):
        bringup.measure(2, {}, tmp_path, options)
