"""A real prefork server with light modules, and programs to run from it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatron_agent.backend.cpu.prefork.launch import PreforkServer, prefork_server

MODULES = ("json", "decimal", "numpy")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreforkServer]:
    """One server for the tests of a file; those that end it make their own."""
    log_path = tmp_path_factory.mktemp("logs") / "prefork.log"
    with prefork_server(log_path, MODULES, timeout_s=60) as running:
        running.wait_ready()
        yield running


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(server: PreforkServer) -> Iterator[Start]:
    """Starts the stand-in as if it were ``python``; what is left of it is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*argv: str, env: dict[str, str] | None = None, **options: object) -> subprocess.Popen:
        process = subprocess.Popen(
            [str(server.python), *argv],
            env={**os.environ, **server.environment, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def wait_until_gone() -> Callable[[int], None]:
    def wait(pid: int) -> None:
        deadline = time.monotonic() + 20
        while is_alive(pid):
            assert time.monotonic() < deadline, f"process {pid} is still there"
            time.sleep(0.02)

    return wait
