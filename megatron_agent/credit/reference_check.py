"""Compares credit with what the reference implementation recorded, batch by batch.

A row passes when its step return and its advantage are within the tolerance. A row beyond it is
left out of the comparison, rather than failed, only if all of these hold:

1. its advantage was normalised in an ill-conditioned group, which is seen from the inputs alone
   (`reference_rounding`);
2. its difference is within the limit that float32 arithmetic sets for that group;
3. all such rows of its task group, taken together, differ as wrong means and stds of these groups
   make them differ: by ``a + b * (x - mean)`` with one a and one b for each group, up to the
   tolerance;
4. the other rows say so: its leverage in that fit is at most `MAX_LEVERAGE`. The only row of its
   value in a group, or one of two, is followed by a and b wherever it goes.

So a single row that is off by more than ten tolerances, beside what rounding does to all of them,
stays a failure. Step returns are never excused.
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

MAX_LEVERAGE = 0.9
"""How much of a difference of one row alone a fit may take for one of its group. What is left of
such a difference is a tenth at least."""


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
    episode, step = (level.rounding for level in levels)
    ill_N = episode.ill_N | step.ill_N
    for task_code in np.unique(episode.code_N[excused_N]):
        rows = np.flatnonzero((episode.code_N == task_code) & ill_N)
        residual_M, leverage_M = _fit(difference_N[rows], episode, step, rows)
        like_N[rows] = (np.abs(residual_M).max() <= tolerance) & (leverage_M <= MAX_LEVERAGE)
    return like_N


def _fit(
    difference_M: NDArray[np.float64],
    episode: GroupRounding,
    step: GroupRounding,
    rows: NDArray[np.intp],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least squares over the rows of one task group: what is left of each, and its leverage.

    Leverage is the share of a change of one row's difference that its fitted value follows. Step
    groups share no rows, so their a and b are taken out group by group, of the differences and of
    the episode level's two columns; these are fitted to what is left. Linear in the rows.
    """
    slope_M, code_M = _slope(step, rows), np.unique(step.code_N[rows], return_inverse=True)[1]
    grouped_M = step.ill_N[rows]
    size_K, square_K = np.bincount(code_M), np.bincount(code_M, weights=np.square(slope_M))
    square_K[square_K == 0] = 1.0

    def without_step_groups(value_M: NDArray[np.float64]) -> NDArray[np.float64]:
        mean_K = np.bincount(code_M, weights=value_M) / size_K
        along_K = np.bincount(code_M, weights=slope_M * value_M) / square_K
        return value_M - grouped_M * (mean_K[code_M] + slope_M * along_K[code_M])

    residual_M = without_step_groups(difference_M)
    leverage_M = grouped_M * (1 / size_K[code_M] + np.square(slope_M) / square_K[code_M])
    if episode.ill_N[rows].any():
        columns = [np.ones(len(rows)), _slope(episode, rows)]
        columns = [column / max(1.0, float(np.linalg.norm(column))) for column in columns]
        left_MC = np.stack([without_step_groups(column) for column in columns], axis=1)
        basis_MC, size_C, _ = np.linalg.svd(left_MC, full_matrices=False)
        basis_MC = basis_MC[:, size_C > 1e-9]  # the rest is what step groups explain already
        residual_M = residual_M - basis_MC @ (basis_MC.T @ residual_M)
        leverage_M = leverage_M + np.square(basis_MC).sum(axis=1)
    return residual_M, leverage_M


def _slope(rounding: GroupRounding, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """The rows' distances from their group's mean, in stds; 0 in a group without spread."""
    flat_M = rounding.flat_N[rows]
    slope_M = rounding.distance_N[rows] / np.where(flat_M, 1.0, rounding.std_N[rows])
    return np.where(flat_M, 0.0, slope_M)
