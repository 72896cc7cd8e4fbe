"""The light driver's ledger: clean through interruptions, and not when two drivers write."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_agent.ledger import Ledger, LedgerReport, check_ledger, read_ledger
from tests.slurm.light_ledger import LightLedger

pytestmark = pytest.mark.unit


def take(ledger: LightLedger, *steps: int) -> None:
    for step in steps:
        ledger.begin(step)
        ledger.end(step)


def report_of(folder: Path) -> LedgerReport:
    return check_ledger(read_ledger(Ledger(folder).path))


def test_a_run_without_interruption_is_clean_over_more_than_one_epoch(tmp_path) -> None:
    take(LightLedger(tmp_path, 0), *range(1, 13))
    report = report_of(tmp_path)
    assert report.problems == (), report.text
    assert (report.last_step, report.num_trained, report.num_open) == (12, 24, 0)


@pytest.mark.parametrize("killed", ["within a step", "before its number was kept", "within a line"])
def test_a_kill_at_any_place_leaves_a_clean_ledger(tmp_path, killed) -> None:
    first = LightLedger(tmp_path, 0)
    take(first, 1, 2)
    first.begin(3)
    if killed == "before its number was kept":
        first.end(3)
    elif killed == "within a line":
        with Ledger(tmp_path).path.open("a") as file:
            file.write('{"kind": "trai')
    take(LightLedger(tmp_path, 2), 3, 4)
    report = report_of(tmp_path)
    assert report.problems == (), report.text
    assert (report.num_attempts, report.last_step, report.num_trained) == (2, 4, 8)
    assert report.num_open == 0


def test_a_kill_before_the_first_step_leaves_a_clean_ledger(tmp_path) -> None:
    LightLedger(tmp_path, 0).begin(1)
    take(LightLedger(tmp_path, 0), 1)
    assert report_of(tmp_path).problems == ()


def test_a_driver_that_outlives_its_attempt_is_found(tmp_path) -> None:
    first = LightLedger(tmp_path, 0)
    take(first, 1, 2)
    second = LightLedger(tmp_path, 2)
    take(second, 3)
    take(first, 3)
    take(second, 4)
    assert "step 3 was trained where step 4 was due" in report_of(tmp_path).problems


def test_an_attempt_that_skips_a_step_is_found(tmp_path) -> None:
    take(LightLedger(tmp_path, 0), 1, 2)
    take(LightLedger(tmp_path, 2), 4)
    assert "step 4 was trained where step 3 was due" in report_of(tmp_path).problems
