"""The server of a node where Ray is there before the run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from megatron_agent.backend.cpu.prefork import launch

pytestmark = pytest.mark.unit


def test_a_folder_that_nobody_serves_keeps_nobody_waiting(tmp_path: Path) -> None:
    launch.wait_for_server(tmp_path / "absent" / launch.SOCKET, timeout_s=3600)


def test_a_server_that_is_still_importing_is_waited_for(tmp_path: Path) -> None:
    socket = tmp_path / launch.SOCKET
    timer = threading.Timer(0.3, socket.touch)
    timer.start()
    launch.wait_for_server(socket, timeout_s=3600)
    assert socket.exists()
    timer.join()


def test_a_server_that_never_comes_is_given_up(tmp_path: Path) -> None:
    launch.wait_for_server(tmp_path / launch.SOCKET, timeout_s=0.0)


def test_the_program_serves_its_folder_until_its_input_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).resolve().parents[4]
    monkeypatch.setenv("PYTHONPATH", str(root))
    # Without the heavy imports: the same program, told to import something light.
    code = (
        "import sys; from megatron_agent.backend.cpu.prefork import launch, serve; "
        "launch.server_arguments.__defaults__ = (('json',),); serve.main()"
    )
    folder = tmp_path / "prefork"
    server = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (folder / launch.SOCKET).exists():
        assert server.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stand_in = folder / launch.STAND_IN
    environment = {**launch.server_environment(folder), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(
        [stand_in, "-c", "import sys; print('json' in sys.modules)"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert said.stdout == "True\n", said.stderr
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(timeout=120) == 0
