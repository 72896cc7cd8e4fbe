"""``megatron-agent credit check``: what passes, what fails, and what may be left out."""

from __future__ import annotations

import dataclasses
import gzip
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_agent import cli
from megatron_agent.credit import compute_credit
from megatron_agent.credit.reference_batches import read_reference_batches
from megatron_agent.credit.reference_check import _fit
from megatron_agent.credit.reference_rounding import group_rounding
from megatron_agent.credit_check import CheckReport, check_file
from megatron_agent.errors import ConfigError

pytestmark = pytest.mark.unit

Batch = dict[str, Any]
Write = Callable[..., Path]

BY_HAND: Batch = {
    "gamma": 0.5,
    "step_advantage_w": 1.0,
    "mode": "mean_norm",
    "episode_stats": "trajectories",
    "rows": [
        {"uid": "g", "traj": "a", "step": 0, "anchor": "start", "reward": 0.0},
        {"uid": "g", "traj": "a", "step": 1, "anchor": "door", "reward": 8.0},
        {"uid": "g", "traj": "b", "step": 0, "anchor": "start", "reward": 0.0},
    ],
    "step_returns": [4.0, 8.0, 0.0],
    "advantages": [6.0, 4.0, -6.0],
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(*batches: Batch, name: str = "batches.json") -> Path:
        path = tmp_path / name
        content = json.dumps(batches).encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write_file


@pytest.fixture
def recorded(write: Write) -> Callable[..., Batch]:
    """A batch of one group whose results are exact; each trajectory ends with its reward."""

    def make(
        last_rewards: Sequence[float], *, num_steps: int = 2, shared: bool = False, **options: Any
    ) -> Batch:
        rows = [
            {
                "uid": "g0",
                "traj": f"t{number}",
                "step": step,
                "anchor": f"state {step}" if shared else f"{number} {step}",
                "reward": reward if step == num_steps - 1 else 0.0,
            }
            for number, reward in enumerate(last_rewards)
            for step in range(num_steps)
        ]
        empty = {"step_returns": [0.0] * len(rows), "advantages": [0.0] * len(rows)}
        batch = BY_HAND | {"mode": "mean_std_norm"} | options | {"rows": rows} | empty
        read = read_reference_batches(write(batch, name="draft.json"))[0]
        credit = compute_credit("gigpo", read.rows, read.config)
        return batch | {
            "step_returns": credit.return_N.tolist(),
            "advantages": credit.advantage_N.tolist(),
        }

    return make


def shifted(batch: Batch, name: str, rows: Sequence[int], by: float) -> Batch:
    values = list(batch[name])
    for row in rows:
        values[row] += by
    return batch | {name: values}


def reasons(report: CheckReport) -> list[str]:
    return [reason for comparison in report.comparisons for _, reason in comparison.reasons()]


@pytest.mark.parametrize("name", ["batches.json", "batches.json.gz"])
def test_a_file_worked_out_by_hand_passes(
    write: Write, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(BY_HAND, name=name)
    assert cli.main(["credit", "check", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(path),
        "batches: 1, rows: 3",
        "rows compared: 3",
        "largest difference: 0.00e+00, at batch 0, row 0 (group 'g', trajectory 'a', step 0)",
        "rows left out: 0",
        "PASSED: every row compared is within 1e-05 of the reference.",
    ]


@pytest.mark.parametrize("name", ["advantages", "step_returns"])
def test_a_difference_above_the_tolerance_fails_and_is_shown(
    write: Write, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(BY_HAND, shifted(BY_HAND, name, [1], 2e-5))
    assert cli.main(["credit", "check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "rows compared: 6" in out
    assert (
        "largest difference: 2.00e-05, at batch 1, row 1 (group 'g', trajectory 'a', step 1)" in out
    )
    assert "rows beyond the tolerance: 1\n  batch 1, row 1" in out
    assert "advantage 4, recorded 4" in out
    assert "FAILED: 2.00e-05 is beyond the tolerance of 1e-05." in out
    assert cli.main(["credit", "check", str(path), "--tolerance", "1e-4"]) == 0


def test_only_some_of_many_failures_are_shown(
    write: Write, recorded: Callable[..., Batch], capsys: pytest.CaptureFixture[str]
) -> None:
    batch = recorded([0.0, 1.0] * 10)
    assert (
        cli.main(["credit", "check", str(write(shifted(batch, "advantages", range(40), 1)))]) == 1
    )
    assert "  and 30 more" in capsys.readouterr().out


def test_both_statistics_and_both_modes_are_understood(
    write: Write, recorded: Callable[..., Batch]
) -> None:
    batches = [
        recorded([0.0, 10.0, 2.5], mode=mode, episode_stats=statistics, shared=True)
        for mode in ("mean_norm", "mean_std_norm")
        for statistics in ("rows", "trajectories")
    ]
    assert check_file(write(*batches), 1e-5).passed
    mixed_up = batches[0] | {"mode": "mean_std_norm"}
    assert not check_file(write(mixed_up), 1e-5).passed


def test_a_lonely_episode_keeps_its_score_as_in_the_reference(
    write: Write, recorded: Callable[..., Batch]
) -> None:
    for mode, score in (("mean_norm", 30.0), ("mean_std_norm", 30.0 / (1 + 1e-6))):
        batch = recorded([30.0], mode=mode) | {"advantages": [score] * 2}
        report = check_file(write(batch), 1e-9)
        assert (report.passed, report.num_left_out) == (True, 0)


def test_rounding_noise_of_a_group_without_spread_is_left_out(
    write: Write, recorded: Callable[..., Batch], capsys: pytest.CaptureFixture[str]
) -> None:
    batch = shifted(recorded([9.9, 9.9, 9.9]), "advantages", range(6), -0.49)
    path = write(batch, recorded([0.0, 1.0]))
    assert cli.main(["credit", "check", str(path)]) == 0
    out = capsys.readouterr().out
    assert "rows compared: 4" in out
    assert "rows left out: 6" in out
    assert (
        "batch 0, group 'g0', episode level: no spread, all episode returns are 9.9; 6 row(s) "
        "differ by up to 4.9e-01, float32 may be off by 2.4e+00: t0/0-1, t1/0-1, t2/0-1" in out
    )


def test_rounding_noise_of_a_step_group_is_left_out(
    write: Write, recorded: Callable[..., Batch]
) -> None:
    batch = recorded([9.9, 9.9, 9.9, 1.0], shared=True, num_steps=1)
    batch["rows"][3]["anchor"] = "elsewhere"
    batch = shifted(batch | {"advantages": [0.5, 0.5, 0.5, -1.5]}, "advantages", range(3), -0.3)
    report = check_file(write(batch), 1e-5)
    assert [reason.split(";")[0] for reason in reasons(report)] == [
        "batch 0, group 'g0', step level: no spread, all step returns are 9.9"
    ]
    assert report.num_left_out == 3


def test_cancellation_in_float32_is_left_out(write: Write, recorded: Callable[..., Batch]) -> None:
    """The mean of the reference is off by 1e-6, and a small std makes 2.5e-5 of it."""
    batch = recorded([10.0] * 6 + [9.9] * 11, num_steps=1, episode_stats="rows")
    report = check_file(write(shifted(batch, "advantages", range(17), -2.5e-5)), 1e-5)
    assert (
        "float32 cancellation, episode returns from 9.9 to 10 with std 0.049" in reasons(report)[0]
    )
    assert report.num_left_out == 17


@pytest.mark.parametrize(
    ("rewards", "rows", "by"),
    [
        # A group with spread enough.
        ([0.0, 10.0, 2.5], range(6), 1e-4),
        # Float32 adds up tens without rounding: the reference gives 0.
        ([10.0, 10.0, 10.0], range(6), 0.4),
        ([0.0, 0.0, 0.0], range(6), 0.4),
        # More than float32 can be off.
        ([9.9, 9.9, 9.9], range(6), 10.0),
        ([10.0] * 6 + [9.9] * 11, range(34), 1e-3),
        # Some rows of the group only, or not all alike: no mean and no std explain it.
        ([9.9, 9.9, 9.9], [0], 0.4),
        ([10.0] * 6 + [9.9] * 11, [3], 1e-4),
        ([10.0, 10.0, 9.9, 9.9], [2, 3], 2e-5),
    ],
)
def test_rounding_is_no_excuse(
    write: Write,
    recorded: Callable[..., Batch],
    rewards: list[float],
    rows: Sequence[int],
    by: float,
) -> None:
    report = check_file(write(shifted(recorded(rewards), "advantages", rows, by)), 1e-5)
    assert not report.passed
    assert report.num_left_out == 0


def test_rounding_is_no_excuse_without_a_division(
    write: Write, recorded: Callable[..., Batch]
) -> None:
    batch = recorded([9.9, 9.9, 9.9], mode="mean_norm")
    report = check_file(write(shifted(batch, "advantages", range(6), 2e-5)), 1e-5)
    assert (report.passed, report.num_left_out) == (False, 0)


def test_a_row_that_is_off_among_rows_without_spread_is_found(
    write: Write, recorded: Callable[..., Batch]
) -> None:
    """At both levels at once: the groups of a task are explained together, or not at all."""
    batch = recorded([9.9, 9.9, 9.9], shared=True)
    noise = shifted(shifted(batch, "advantages", range(6), -0.2), "advantages", [0, 2, 4], 0.1)
    assert check_file(write(noise), 1e-5).num_left_out == 6
    report = check_file(write(shifted(noise, "advantages", [3], 0.01)), 1e-5)
    assert (report.passed, report.num_left_out) == (False, 0)


def test_a_wrong_step_return_is_never_left_out(
    write: Write, recorded: Callable[..., Batch]
) -> None:
    batch = shifted(recorded([9.9, 9.9, 9.9]), "advantages", range(6), -0.49)
    report = check_file(write(shifted(batch, "step_returns", [0], 1e-3)), 1e-5)
    assert (report.passed, report.num_left_out) == (False, 5)


def test_a_file_without_a_row_to_compare_does_not_pass(
    write: Write, recorded: Callable[..., Batch]
) -> None:
    batch = shifted(recorded([9.9, 9.9, 9.9]), "advantages", range(6), -0.49)
    report = check_file(write(batch), 1e-5)
    assert not report.passed
    assert "FAILED: no row could be compared" in report.text()


def test_values_too_large_for_the_tolerance_are_named(
    write: Write, recorded: Callable[..., Batch]
) -> None:
    batch = recorded([0.0, 5000.0], mode="mean_norm")
    report = check_file(write(shifted(batch, "advantages", [0], 2e-4)), 1e-5)
    assert "Values reach 5000, and float32" in report.text()
    assert "Choose a larger --tolerance." in report.text()


@pytest.mark.parametrize("tolerance", ["nan", "inf", "-1e-5"])
def test_a_tolerance_must_be_a_finite_number(
    write: Write, tolerance: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(BY_HAND))
    assert cli.main(["credit", "check", path, f"--tolerance={tolerance}"]) == 2
    message = capsys.readouterr().err
    assert f"--tolerance must be a finite number >= 0, got {float(tolerance)}. Use 1e-5." in message
    with pytest.raises(ConfigError):
        check_file(write(BY_HAND), float(tolerance))


def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["credit", "check", str(tmp_path / "missing.json")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "missing.json must be a file that can be read, got No such file" in captured.err


def test_the_recorded_batches_of_the_reference_pass(reference_path: Path) -> None:
    """Batch 37: one group with returns 10 and 9.9 (std 0.05), whose float32 mean is off by one unit
    in the last place.
    """
    report = check_file(reference_path, 1e-5)
    assert report.passed
    assert (len(report.comparisons), report.num_rows, report.num_left_out) == (60, 3162, 17)
    assert report.largest_difference < 3e-6
    left_out = {
        number: np.flatnonzero(comparison.left_out_N).tolist()
        for number, comparison in enumerate(report.comparisons)
        if comparison.left_out_N.any()
    }
    assert left_out == {37: list(range(17))}
    assert "batch 37, group 'g0', episode level: float32 cancellation" in reasons(report)[0]


@pytest.mark.parametrize("last_rewards", [[9.9, 9.9001], [9.9, 9.9, 9.9001]])
def test_a_row_that_no_other_row_speaks_for_is_not_left_out(
    write: Write, recorded: Callable[..., Batch], last_rewards: list[float]
) -> None:
    """A mean and a std of their own explain anything of two rows, or of the only one of a value."""
    wrong = shifted(
        recorded(last_rewards, num_steps=1), "advantages", [len(last_rewards) - 1], 0.02
    )
    report = check_file(write(wrong, recorded([0.0, 1.0])), 1e-5)
    assert (report.passed, report.num_left_out) == (False, 0)
    assert "rows beyond the tolerance: 1" in report.text()


def test_the_fit_is_that_of_dense_least_squares() -> None:
    rng = np.random.default_rng(0)
    num_rows = 40
    code_N = rng.integers(0, 7, num_rows)
    code_N[:7] = np.arange(7)
    all_N = np.ones(num_rows, dtype=bool)
    return_N = 9.9 + 1e-4 * rng.integers(0, 3, num_rows) * (code_N != 3)  # group 3 is flat
    return_N[code_N == 5] *= rng.uniform(0, 1, int((code_N == 5).sum()))  # group 5 is not ill
    step = group_rounding(return_N, code_N, all_N, 1e-6)
    episode = group_rounding(return_N[::-1] + 0.0, np.zeros(num_rows, int), all_N, 1e-6)
    episode = dataclasses.replace(episode, limit_N=np.ones(num_rows))  # as if it were ill
    rows = np.arange(num_rows)
    difference_N = rng.normal(size=num_rows)
    residual_N, leverage_N = _fit(difference_N, episode, step, rows)

    columns = [np.ones(num_rows), episode.distance_N]
    for code in np.unique(code_N[step.ill_N]):
        columns += [code_N == code, (code_N == code) * step.distance_N * (code != 3)]
    matrix = np.stack(columns, axis=1) / np.linalg.norm(np.stack(columns, axis=1), axis=0).clip(
        1e-30
    )
    hat = matrix @ np.linalg.pinv(matrix, rcond=1e-9)
    np.testing.assert_allclose(residual_N, difference_N - hat @ difference_N, atol=1e-8)
    np.testing.assert_allclose(leverage_N, np.diag(hat), atol=1e-8)


def test_a_large_group_is_compared_in_no_time(write: Write, recorded: Callable[..., Batch]) -> None:
    """A dense fit of 4,000 rows in 800 step groups would take minutes."""
    rewards = [9.9, 9.9001] * 400
    batch = recorded(rewards, num_steps=5, shared=False)
    batch["rows"] = [
        row | {"anchor": f"{number // 20} {row['step']}"}
        for number, row in enumerate(batch["rows"])
    ]
    started = time.process_time()
    check_file(write(shifted(batch, "advantages", range(4000), -2e-5)), 1e-5)
    assert time.process_time() - started < 5
