"""``megatron-agent credit check FILE``: is our credit what the reference implementation gives?

Recomputes a file of recorded batches (`credit.reference_batches` has the format) and says how far
the two are apart, which rows were left out of the comparison and why (`credit.reference_check`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_agent.credit.reference_batches import read_reference_batches
from megatron_agent.credit.reference_check import BatchComparison, compare
from megatron_agent.credit.reference_rounding import UNIT_ROUNDOFF
from megatron_agent.errors import ConfigError

MAX_FAILURES_SHOWN = 10
FLOAT32_ROUNDINGS = 10
"""As many roundings of the largest value as a mean of some hundred values may differ by."""


@dataclass(frozen=True)
class CheckReport:
    """Outcome of a check."""

    path: Path
    tolerance: float
    comparisons: list[BatchComparison]

    @property
    def num_rows(self) -> int:
        return sum(comparison.batch.rows.num_rows for comparison in self.comparisons)

    @property
    def num_left_out(self) -> int:
        return sum(int(comparison.left_out_N.sum()) for comparison in self.comparisons)

    @property
    def largest_difference(self) -> float:
        """Over the rows compared; 0 if there are none."""
        return max((difference for difference, _, _ in self._compared()), default=0.0)

    @property
    def passed(self) -> bool:
        """Rows were compared, and all of them are within the tolerance."""
        return self.num_left_out < self.num_rows and self.largest_difference <= self.tolerance

    def text(self) -> str:
        """The report for a person to read."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        num_compared = self.num_rows - self.num_left_out
        yield str(self.path)
        yield f"batches: {len(self.comparisons)}, rows: {self.num_rows}"
        yield f"rows compared: {num_compared}"
        if num_compared:
            difference, comparison, row = max(self._compared(), key=lambda found: found[0])
            yield f"largest difference: {difference:.2e}, at {comparison.batch.place(row)}"
        yield f"rows left out: {self.num_left_out}"
        for comparison in self.comparisons:
            yield from (f"  {reason}" for _, reason in comparison.reasons())
        failures = [found for found in self._compared() if found[0] > self.tolerance]
        if failures:
            yield f"rows beyond the tolerance: {len(failures)}"
            for _, comparison, row in failures[:MAX_FAILURES_SHOWN]:
                yield f"  {_difference_in_words(comparison, row)}"
            if len(failures) > MAX_FAILURES_SHOWN:
                yield f"  and {len(failures) - MAX_FAILURES_SHOWN} more"
        yield self._verdict(num_compared)

    def _verdict(self, num_compared: int) -> str:
        if self.passed:
            return f"PASSED: every row compared is within {self.tolerance:g} of the reference."
        if not num_compared:
            return "FAILED: no row could be compared; the reference is defined by rounding in all."
        verdict = (
            f"FAILED: {self.largest_difference:.2e} is beyond the tolerance of {self.tolerance:g}."
        )
        scale = self._largest_value()
        if self.largest_difference <= FLOAT32_ROUNDINGS * UNIT_ROUNDOFF * scale:
            verdict += (
                f" Values reach {scale:.4g}, and float32, which the reference computes in, carries "
                "such values no further. Choose a larger --tolerance."
            )
        return verdict

    def _largest_value(self) -> float:
        return max(
            float(np.abs(values).max())
            for comparison in self.comparisons
            for values in (comparison.batch.step_return_N, comparison.batch.rows.episode_return_N)
        )

    def _compared(self) -> Iterator[tuple[float, BatchComparison, int]]:
        for comparison in self.comparisons:
            difference_N = comparison.difference_N
            for row in np.flatnonzero(~comparison.left_out_N).tolist():
                yield float(difference_N[row]), comparison, row


def check_file(path: Path, tolerance: float) -> CheckReport:
    """Compare credit with a file of recorded batches.

    Raises:
        ConfigError: a tolerance that is no finite number >= 0.
        CreditError: a file that cannot be read or does not hold recorded batches.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ConfigError("--tolerance", "must be a finite number >= 0", tolerance, "Use 1e-5.")
    batches = read_reference_batches(path)
    return CheckReport(path, tolerance, [compare(batch, tolerance) for batch in batches])


def _difference_in_words(comparison: BatchComparison, row: int) -> str:
    batch = comparison.batch
    advantage = batch.advantage_N[row] + comparison.advantage_difference_N[row]
    step_return = batch.step_return_N[row] + comparison.return_difference_N[row]
    return (
        f"{batch.place(row)}: advantage {advantage:.7g}, recorded {batch.advantage_N[row]:.7g}; "
        f"step return {step_return:.7g}, recorded {batch.step_return_N[row]:.7g}"
    )
