"""Two processes never share a run folder, and a dead one keeps nobody out."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_agent.errors import ConfigError
from megatron_agent.run_lock import LOCK_FILE, hold_run

pytestmark = pytest.mark.unit

_HOLDER = """
import sys
from pathlib import Path
from megatron_agent.run_lock import hold_run
hold_run(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path, repo_root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds ``tmp_path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(repo_root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_by_folder_and_pid(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        hold_run(tmp_path)
    host = os.uname().nodename
    assert str(raised.value) == (
        f"run.dir must not be in use by another process (pid {holder.pid} on {host}), "
        f"got '{tmp_path}'. Wait for it, stop it, or start another run with run.name=... ."
    )


def test_a_lock_of_a_dead_process_keeps_nobody_out(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.kill()
    holder.wait()
    hold_run(tmp_path)
    assert (tmp_path / LOCK_FILE).read_text().startswith(f"pid {os.getpid()} on ")


def test_a_process_may_ask_for_its_own_folder_again(tmp_path: Path) -> None:
    hold_run(tmp_path / "run")
    hold_run(tmp_path / "run")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run"
    file.write_text("mine")
    for run_dir in (file, file / "below"):
        with pytest.raises(ConfigError) as raised:
            hold_run(run_dir)
        assert str(raised.value).startswith(
            "run.dir must be a folder that can be made and written to ("
        )
        assert str(raised.value).endswith(
            f"got '{run_dir}'. Choose another one with run.dir=... , or mend this one."
        )
    assert file.read_text() == "mine"


def test_a_folder_in_the_place_of_the_lock_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(ConfigError, match=rf"^run\.dir must .*Is a directory: .*{LOCK_FILE}\)"):
        hold_run(tmp_path)


@pytest.mark.parametrize(
    ("place", "function", "number"),
    [(Path, "mkdir", errno.EACCES), (os, "open", errno.EROFS), (os, "pwrite", errno.ENOSPC)],
)
def test_a_place_that_cannot_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, function: str, number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(place, function, fail)
    with pytest.raises(ConfigError) as raised:
        hold_run(tmp_path)
    monkeypatch.undo()
    assert f"written to ({os.strerror(number)}), got" in str(raised.value)
    hold_run(tmp_path)  # what failed holds nothing


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with caplog.at_level(logging.WARNING):
        hold_run(tmp_path)
    assert "cannot be locked" in caplog.text
