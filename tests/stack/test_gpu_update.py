"""``benchmarks/gpu_update.py`` from end to end, on whatever device there is, with tiny shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_has_a_line_for_each_batch_form_and_phase() -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "gpu_update.py"), "--shapes", "tiny"]
    sizes = ["--lengths", "24", "40", "--rows", "4", "--micro-batch", "64", "--repeats", "1"]
    patience = ["--limit-s", "3600"]
    done = subprocess.run(
        [*program, *sizes, *patience],
        capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "4 rows of 24 to 40 tokens, 128 in all" in done.stdout
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()
        if line.startswith("| tiny ")
    ]
    assert [row[1:3] for row in cells] == [
        ["padded", "log-prob"],
        ["padded", "update"],
        ["packed", "log-prob"],
        ["packed", "update"],
    ]
    for row in cells:
        assert float(row[3].replace(",", "")) > 0  # tokens/s
        assert float(row[6]) > 0  # GiB at the peak
