"""The demo starts afresh, and removes nothing but an earlier run."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_agent.demo import remove_earlier_run
from megatron_agent.errors import ConfigError
from megatron_agent.run_lock import LOCK_FILE

pytestmark = pytest.mark.unit


def test_an_earlier_run_is_removed_and_the_folder_held(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "checkpoints" / "global_step_1").mkdir(parents=True)
    remove_earlier_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    # Stopped before its run.json was written: still a folder of the demo's.
    remove_earlier_run(tmp_path)


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    remove_earlier_run(tmp_path / "runs" / "demo")
    assert (tmp_path / "runs" / "demo").is_dir()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError) as raised:
        remove_earlier_run(tmp_path)
    assert str(raised.value) == (
        "--run-dir must be a new folder or that of an earlier run: what is in it would be "
        f"removed, got '{tmp_path}'. Choose another folder, or remove it yourself."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
