"""Compares credit with what the reference implementation recorded, batch by batch.

A row passes when its step return and its advantage are within the tolerance. A row beyond it is
left out of the comparison, rather than failed, only if all of these hold:

1. its advantage was normalised in an ill-conditioned group, which is seen from the inputs alone
   (`reference_rounding`);
2. its difference is within the limit that float32 arithmetic sets for that group;
3. all such rows of its task group, taken together, differ as wrong means and stds of these groups
   make them differ: by ``a + b * (x - mean)`` with one a and one b for each group, up to the
   tolerance. A single row that is off stays a failure.

Step returns are never excused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.compute import compute_credit
from megatron_agent.credit.reference_batches import ReferenceBatch
from megatron_agent.credit.reference_rounding import GroupRounding, group_rounding
from megatron_agent.credit.segments import codes_of, pair_codes


@dataclass(frozen=True, eq=False)
class Level:
    """One of the two comparisons of GiGPO in one batch."""

    name: str
    values: str
    """What is compared, in words."""
    weight: float
    rounding: GroupRounding

    @property
    def limit_N(self) -> NDArray[np.float64]:
        """How far float32 may carry the advantage off at this level."""
        return self.weight * self.rounding.limit_N


@dataclass(frozen=True, eq=False)
class BatchComparison:
    """N rows of a batch beside the reference."""

    batch: ReferenceBatch
    return_difference_N: NDArray[np.float64]
    """Ours minus recorded."""
    advantage_difference_N: NDArray[np.float64]
    left_out_N: NDArray[np.bool_]
    levels: tuple[Level, ...]
    """Empty unless an advantage is beyond the tolerance where rounding might explain it."""

    @property
    def difference_N(self) -> NDArray[np.float64]:
        """The larger of the two differences of each row, without sign."""
        return np.maximum(np.abs(self.return_difference_N), np.abs(self.advantage_difference_N))

    def reasons(self) -> Iterator[tuple[list[int], str]]:
        """Rows that were left out, group by group, and why."""
        left = self.left_out_N.copy()
        for level in self.levels:
            for code in np.unique(level.rounding.code_N[left & level.rounding.ill_N]):
                member_N = left & (level.rounding.code_N == code)
                left &= ~member_N
                rows = np.flatnonzero(member_N).tolist()
                yield rows, self._reason(level, rows)

    def _reason(self, level: Level, rows: Sequence[int]) -> str:
        rounding, first = level.rounding, rows[0]
        low, high = rounding.low_N[first], rounding.high_N[first]
        largest, limit = np.abs(self.advantage_difference_N[rows]).max(), level.limit_N[rows].max()
        group = f"group {self.batch.rows.group_N[first]!r}"
        if high - low <= 1e-6 * max(abs(low), abs(high)):
            kind = f"no spread, all {level.values} are {low:.7g}"
        else:
            kind = (
                f"float32 cancellation, {level.values} from {low:.7g} to {high:.7g} with std "
                f"{rounding.std_N[first]:.2g}"
            )
        return (
            f"batch {self.batch.number}, {group}, {level.name} level: {kind}; {len(rows)} row(s) "
            f"differ by up to {largest:.1e}, float32 may be off by {limit:.1e}: {self._steps(rows)}"
        )

    def _steps(self, rows: Sequence[int]) -> str:
        """Name rows by trajectory and step, in short: ``t0/0-3, t1/2``."""
        steps_of: dict[str, list[int]] = {}
        for row in rows:
            steps_of.setdefault(self.batch.trajectory_N[row], []).append(
                int(self.batch.rows.step_N[row])
            )
        parts = []
        for trajectory, steps in steps_of.items():
            array = np.sort(steps)
            runs = np.split(array, np.flatnonzero(np.diff(array) > 1) + 1)
            ranges = (f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)
            parts.append(f"{trajectory}/{','.join(ranges)}")
        return ", ".join(parts)


def compare(batch: ReferenceBatch, tolerance: float) -> BatchComparison:
    """Recompute a batch and compare it, see the head of this file."""
    credit = compute_credit("gigpo", batch.rows, batch.config)
    difference_N = credit.advantage_N - batch.advantage_N
    comparison = BatchComparison(
        batch=batch,
        return_difference_N=credit.return_N - batch.step_return_N,
        advantage_difference_N=difference_N,
        left_out_N=np.zeros(batch.rows.num_rows, dtype=bool),
        levels=(),
    )
    beyond_N = np.abs(difference_N) > tolerance
    if batch.config.mode != "mean_std_norm" or not beyond_N.any():
        return comparison
    levels = _levels(batch, credit.return_N)
    limit_N = sum(level.limit_N for level in levels)
    excused_N = beyond_N & (limit_N > 0) & (np.abs(difference_N) <= limit_N + tolerance)
    excused_N &= np.abs(comparison.return_difference_N) <= tolerance
    excused_N &= _like_rounding(levels, excused_N, difference_N, tolerance)
    return replace(comparison, left_out_N=excused_N, levels=levels)


def _levels(batch: ReferenceBatch, return_N: NDArray[np.float64]) -> tuple[Level, Level]:
    rows, config = batch.rows, batch.config
    group_code_N, _ = codes_of(rows.group_N)
    assert rows.anchor_N is not None  # a recorded row has one, the reader sees to it
    step_code_N, _ = pair_codes(group_code_N, codes_of(rows.anchor_N)[0])
    all_N = np.ones(rows.num_rows, dtype=bool)
    counts_N = all_N if config.episode_statistics == "row" else rows.step_N == 0
    episode = group_rounding(rows.episode_return_N, group_code_N, counts_N, config.epsilon)
    step = group_rounding(return_N, step_code_N, all_N, config.epsilon)
    return (
        Level("episode", "episode returns", config.episode_advantage_w, episode),
        Level("step", "step returns", config.step_advantage_w, step),
    )


def _like_rounding(
    levels: tuple[Level, Level],
    excused_N: NDArray[np.bool_],
    difference_N: NDArray[np.float64],
    tolerance: float,
) -> NDArray[np.bool_]:
    """Rows of task groups whose differences wrong means and stds explain."""
    like_N = np.zeros_like(excused_N)
    task_code_N = levels[0].rounding.code_N
    ill_N = levels[0].rounding.ill_N | levels[1].rounding.ill_N
    for task_code in np.unique(task_code_N[excused_N]):
        rows = np.flatnonzero((task_code_N == task_code) & ill_N)
        terms = []
        for rounding in (level.rounding for level in levels):
            code = np.where(rounding.ill_N, rounding.code_N, -1)[rows]
            distance = rounding.distance_N[rows] / np.maximum(rounding.std_N[rows], 1e-30)
            members = code == np.unique(code[code >= 0])[:, None]
            terms += [members, members * distance]
        matrix = np.concatenate(terms).T.astype(np.float64)
        fit, *_ = np.linalg.lstsq(matrix, difference_N[rows])
        like_N[rows] = np.abs(matrix @ fit - difference_N[rows]).max() <= tolerance
    return like_N
