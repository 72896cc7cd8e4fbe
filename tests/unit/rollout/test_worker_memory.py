"""Sizes as people write them, and what a process group holds."""

from __future__ import annotations

import os
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


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_group_holds_what_its_processes_hold():
    ours = os.getpgid(0)
    before = held_bytes({ours})[ours]
    ballast = bytearray(os.urandom(2**20) * 64)
    grown = held_bytes({ours})[ours] - before
    assert grown > 32 * 2**20
    assert len(ballast) == 64 * 2**20


def test_a_group_that_is_gone_holds_nothing():
    assert held_bytes({2**30}) == {2**30: 0}
