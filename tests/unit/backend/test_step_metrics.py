"""What a checkpoint keeps of its step's metrics, and whether the run still owes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from megatron_agent.backend.step_metrics import FILE, Owed, keep_metrics

pytestmark = pytest.mark.unit


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints" / "global_step_7"
    folder.mkdir(parents=True)
    return folder


def test_numbers_are_kept_and_nothing_else(checkpoint):
    metrics = {"rows": np.int64(3), "loss": np.float32(0.5), "nan": float("nan"), "table": {"a": 1}}
    keep_metrics(checkpoint, metrics, {"gen": 2.5})
    kept = json.loads((checkpoint / FILE).read_text())
    assert kept == {"rows": 3, "loss": 0.5, "timing_s/gen": 2.5}


def test_they_are_owed_until_a_line_of_the_step_is_written(checkpoint, tmp_path):
    written = tmp_path / "metrics.jsonl"
    keep_metrics(checkpoint, {"rows": 3})
    both = Owed(metrics={"rows": 3}, evaluation=True)
    assert Owed.after(checkpoint, written) == both
    written.write_text('{"step": 6, "rows": 2}\n{"step": 7, "rows"')  # cut off by a kill
    assert Owed.after(checkpoint, written) == both
    written.write_text('{"step": 6, "rows": 2}\n{"step": 7, "rows": 3}\n')
    assert Owed.after(checkpoint, written) == Owed()


def test_an_evaluation_that_is_written_is_not_owed_and_stands_for_nothing_else(
    checkpoint, tmp_path
):
    written = tmp_path / "metrics.jsonl"
    keep_metrics(checkpoint, {"rows": 3})
    written.write_text('{"step": 7, "time": 1.5, "val-core/x/success": 0.5}\n')
    assert Owed.after(checkpoint, written) == Owed(metrics={"rows": 3}, evaluation=False)


def test_a_checkpoint_written_without_them_owes_nothing(checkpoint, tmp_path):
    """One that was written before a step was taken here, or by an earlier version."""
    assert Owed.after(checkpoint, tmp_path / "metrics.jsonl") == Owed()
