"""A manager of shared memory that gets no core for a while: torch gives up, our wrapper waits."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from megatron_agent.backend.cpu import shared_memory

pytestmark = [pytest.mark.contract, pytest.mark.timeout(120)]

SHARE_WHILE_THE_MANAGER_SLEEPS = """
    import sys, threading
    import psutil
    import torch
    from megatron_agent.backend.cpu import shared_memory

    if sys.argv[1] == "patient":
        shared_memory.install()
        shared_memory.install()
    handle = torch.zeros(4).untyped_storage()._share_filename_cpu_()  # starts the manager
    def is_ours(process):
        try:  # others come and go
            sockets = process.net_connections("unix")
        except psutil.NoSuchProcess:
            return False
        return handle[0].decode() in str(sockets)

    named = [p for p in psutil.process_iter(["name"]) if p.info["name"].startswith("torch_shm")]
    (manager,) = [p for p in named if is_ours(p)]
    manager.suspend()
    threading.Timer(2.5, manager.resume).start()
    storage = torch.arange(3.0).untyped_storage()
    manager_name, file_name, size = storage._share_filename_cpu_()
    manager.suspend()
    threading.Timer(2.5, manager.resume).start()
    again = torch.UntypedStorage._new_shared_filename_cpu(manager_name, file_name, size)
    assert torch.tensor(again, dtype=torch.float32).tolist()[:3] == [0.0, 1.0, 2.0]
"""


def _share(how: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(SHARE_WHILE_THE_MANAGER_SLEEPS)
    return subprocess.run(
        [sys.executable, "-c", program, how], capture_output=True, text=True, timeout=100
    )


def test_torch_gives_its_manager_a_second() -> None:
    done = _share("as it is")
    assert done.returncode == 1
    assert shared_memory.TIMED_OUT in done.stderr, done.stderr


def test_the_wrapper_waits_on_both_sides() -> None:
    done = _share("patient")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("has not answered yet") >= 2
