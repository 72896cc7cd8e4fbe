"""When the server starts, refuses to, and ends; and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_agent.backend.cpu.prefork import protocol
from megatron_agent.backend.cpu.prefork.launch import prefork_server
from megatron_agent.errors import HookError

pytestmark = pytest.mark.unit

SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


def sleeping_worker(server):
    """A client, and the pid of the worker that was forked for it."""
    client = subprocess.Popen(
        [str(server.python), "-c", SLEEPER],
        env={**os.environ, **server.environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    return client, int(client.stdout.readline())


def test_the_parts_of_the_package_need_nothing_heavy(repo_root):
    parts = ", ".join(
        f"megatron_agent.backend.cpu.prefork.{part}"
        for part in ("client", "launch", "protocol", "server")
    )
    # The client adds its own folder to the path and takes protocol from there.
    heavy = {"torch", "numpy", "verl", "ray", "sglang", "megatron", "transformers"}
    code = f"import sys; import {parts}; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_module_that_is_missing_is_named_with_the_end_of_the_log(tmp_path):
    log_path = tmp_path / "logs" / "prefork.log"
    with (
        prefork_server(log_path, ["no_such_module"], timeout_s=60) as server,
        pytest.raises(HookError, match=r"did not start \(.*prefork\.log\):(?s:.*)no_such_module"),
    ):
        server.wait_ready()


def test_a_module_that_starts_a_thread_is_refused(tmp_path, monkeypatch):
    (tmp_path / "threaded.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True, name='keeper').start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with (
        prefork_server(tmp_path / "prefork.log", ["threaded"], timeout_s=60) as server,
        pytest.raises(HookError, match=r"an import started threads \(.*keeper"),
    ):
        server.wait_ready()


def test_imports_that_take_too_long_are_given_up(tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with (
        prefork_server(tmp_path / "prefork.log", ["endless"], timeout_s=0.2) as server,
        pytest.raises(HookError, match="did not start"),
    ):
        server.wait_ready()
    # Leaving the block has not waited for the import either.
    assert server._process.returncode == -signal.SIGKILL


def test_the_end_of_the_run_ends_every_worker(tmp_path, wait_until_gone):
    with prefork_server(tmp_path / "prefork.log", ["json"], timeout_s=60) as server:
        server.wait_ready()
        client, worker = sleeping_worker(server)
        folder = server.python.parent
    wait_until_gone(worker)
    client.communicate(timeout=20)
    assert client.returncode != 0
    assert not folder.exists()


def test_a_killed_launcher_takes_server_and_workers_along(tmp_path, repo_root, wait_until_gone):
    script = tmp_path / "launcher.py"
    script.write_text(
        f"""
import os, subprocess, time
from pathlib import Path
from megatron_agent.backend.cpu.prefork.launch import prefork_server
with prefork_server(Path({str(tmp_path / "prefork.log")!r}), ["json"], timeout_s=60) as server:
    server.wait_ready()
    print(server._process.pid, flush=True)
    subprocess.Popen(
        [str(server.python), "-c", {SLEEPER!r}], env={{**os.environ, **server.environment}}
    )
    time.sleep(60)
"""
    )
    launcher = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(repo_root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    server, worker = (int(launcher.stdout.readline()) for _ in range(2))
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    wait_until_gone(worker)
    wait_until_gone(server)


def test_a_killed_server_takes_its_workers_along(tmp_path, wait_until_gone):
    with prefork_server(tmp_path / "prefork.log", ["json"], timeout_s=60) as server:
        server.wait_ready()
        client, worker = sleeping_worker(server)
        server._process.kill()
        wait_until_gone(worker)
        client.communicate(timeout=20)
        assert client.returncode == 1


def test_a_client_that_says_nothing_sensible_does_not_disturb_the_server(server):
    address = server.environment[protocol.SOCKET_VARIABLE]
    for message in (b"", b"\x00", b"\x00\x00\x00\x05{not}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(address)
            connection.sendall(message)
    done = subprocess.run(
        [str(server.python), "-c", "print('fine')"],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "fine\n"


def test_the_terminals_interrupt_is_for_the_launcher_alone(server):
    assert os.getpgid(server._process.pid) != os.getpgid(0)


def test_the_server_keeps_no_dead_children_and_no_descriptors(server):
    def count(pid: int) -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    def run_one() -> None:
        subprocess.run(
            [str(server.python), "-c", "pass"],
            env={**os.environ, **server.environment},
            check=True,
            timeout=60,
        )

    run_one()
    before = count(server._process.pid)
    for _ in range(3):
        run_one()
    deadline = time.monotonic() + 10
    while count(server._process.pid) > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert count(server._process.pid) == before
    children = Path(f"/proc/{server._process.pid}/task/{server._process.pid}/children")
    assert children.read_text().split() == []


def test_what_the_client_is_started_with_matches_the_protocol():
    left, right = socket.socketpair()
    with left, right:
        protocol.send_request(left, ["-c", "x"], {"A": "ü"}, "/", [0, 1])
        request, descriptors = protocol.receive_request(right)
        assert request == {"argv": ["-c", "x"], "env": {"A": "ü"}, "cwd": "/", "fds": [0, 1]}
        assert len(descriptors) == 2
        for descriptor in descriptors:
            os.close(descriptor)
        protocol.send_int(right, -signal.SIGKILL)
        assert protocol.receive_int(left) == -signal.SIGKILL
        right.close()
        assert protocol.receive_int(left) is None
