"""Sizes as people write them, and what a process group holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from megatron_agent.errors import ConfigError
from megatron_agent.rollout.worker_memory import held_bytes, memory_limit_bytes

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("limit", "num_bytes"),
    [
        (None, None),
        (2**30, 2**30),
        ("1073741824", 2**30),
        ("512MiB", 2**29),
        ("1.5 GiB", 3 * 2**29),
    ],
)
def test_a_limit_is_bytes_or_a_size(limit: int | str | None, num_bytes: int | None):
    assert memory_limit_bytes(limit) == num_bytes


@pytest.mark.parametrize("limit", ["4GB", "-1GiB", "", "GiB", "1e9"])
def test_what_is_no_size_is_refused(limit: str):
    with pytest.raises(ConfigError, match=r"env\.worker_memory_limit must be bytes or a size in K"):
        memory_limit_bytes(limit)


def test_a_limit_that_no_worker_could_keep_is_refused():
    with pytest.raises(ConfigError, match=r"worker_memory_limit must be at least 64MiB, got 1000"):
        memory_limit_bytes(1000)


# Holds 64 MiB more once it is told to; in a group of its own, where nothing else grows or shrinks.
HOLDER = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
ballast = bytearray(os.urandom(2**20) * 64)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_group_holds_what_its_processes_hold():
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        group = holder.pid
        assert holder.stdout.readline() == "ready\n"
        before = held_bytes({group})[group]
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "held\n"
        grown = held_bytes({group})[group] - before
        holder.communicate("\n")
    assert 32 * 2**20 < grown < 256 * 2**20


def test_a_group_that_is_gone_holds_nothing():
    assert held_bytes({2**30}) == {2**30: 0}
