"""Arithmetic over groups of rows that lie anywhere in an array. Letter K: groups of any kind.

A group's statistics are taken over its *sorted* values, one by one. Hence they depend on the
values alone, bit for bit: not on the order of the rows, the names of groups and sessions, or the
other groups of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SPREAD_TOLERANCE = 1e-9
"""Values of a group are all equal when ``max - min <= SPREAD_TOLERANCE * max(1, max(|min|,
|max|))``.

Far above the rounding of float64 sums (about 1e-15 relative for a few hundred steps) and far
below any reward that means something. Without such a rule the mean of equal returns that float
cannot represent, 9.9 say, differs from them in the last bit, and dividing by a spread of rounding
noise makes advantages of any size out of nothing."""


def codes_of(
    labels_N: NDArray[np.object_], *, ordered: bool = False
) -> tuple[NDArray[np.int64], int]:
    """Number the distinct labels: ``(code_N, num_labels)``, codes 0..num_labels-1.

    Args:
        labels_N: text, one label per row.
        ordered: codes follow the order of the labels, not of first appearance (costs a sort).

    Example:
        >>> codes_of(np.array(["b", "a", "b"], dtype=object))[0].tolist()
        [0, 1, 0]
    """
    labels = labels_N.tolist()
    # Dict and map run in C: ten times faster than np.unique on text.
    distinct = sorted(set(labels)) if ordered else list(dict.fromkeys(labels))
    code_of = dict(zip(distinct, range(len(distinct)), strict=True))
    return np.fromiter(map(code_of.__getitem__, labels), np.int64, len(labels)), len(distinct)


def pair_codes(
    first_N: NDArray[np.int64], second_N: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Number the distinct pairs of two codes: ``(code_N, num_pairs)``. Codes are 0 and up, and
    not much larger than their number: a pair becomes one number.
    """
    combined_N = first_N * (int(second_N.max()) + 1) + second_N
    pairs, code_N = np.unique(combined_N, return_inverse=True)
    return code_N.reshape(-1), len(pairs)


@dataclass(frozen=True, eq=False)
class GroupStatistics:
    """Facts about K groups of values."""

    size_K: NDArray[np.int64]
    low_K: NDArray[np.float64]
    high_K: NDArray[np.float64]
    mean_K: NDArray[np.float64]
    std_K: NDArray[np.float64]
    """Unbiased (divided by size - 1) unless asked otherwise; 0 for a group of one."""

    @property
    def lonely_K(self) -> NDArray[np.bool_]:
        """Groups of one: nobody to be compared with."""
        return self.size_K == 1

    @property
    def flat_K(self) -> NDArray[np.bool_]:
        """Groups without spread, see `SPREAD_TOLERANCE`. Lonely groups are flat."""
        scale_K = np.maximum(1.0, np.maximum(np.abs(self.low_K), np.abs(self.high_K)))
        return self.high_K - self.low_K <= SPREAD_TOLERANCE * scale_K


def group_statistics(
    value_M: NDArray[np.float64],
    code_M: NDArray[np.int64],
    num_groups: int,
    *,
    unbiased_std: bool = True,
) -> GroupStatistics:
    """Statistics of each group. Every code in 0..num_groups-1 must occur.

    Args:
        value_M: values of the members.
        code_M: their groups.
        num_groups: K.
        unbiased_std: divide squares by size - 1 rather than by size.

    Example:
        >>> group_statistics(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 1]), 2).mean_K.tolist()
        [2.0, 5.0]
    """
    order = np.lexsort((value_M, code_M))
    value_M, code_M = value_M[order], code_M[order]
    size_K = np.bincount(code_M, minlength=num_groups)
    end_K = np.cumsum(size_K)
    # bincount adds in the order of its input, here by value: the sum of a group is reproducible.
    mean_K = np.bincount(code_M, weights=value_M, minlength=num_groups) / size_K
    square_M = np.square(value_M - mean_K[code_M])
    square_sum_K = np.bincount(code_M, weights=square_M, minlength=num_groups)
    if np.isinf(square_sum_K).any():
        np.sum(square_M)  # bincount overflows in silence; this tells, as np.errstate has it
    return GroupStatistics(
        size_K=size_K,
        low_K=value_M[end_K - size_K],
        high_K=value_M[end_K - 1],
        mean_K=mean_K,
        std_K=np.sqrt(square_sum_K / np.maximum(size_K - int(unbiased_std), 1)),
    )


def relative_to_group(
    value_N: NDArray[np.float64],
    code_N: NDArray[np.int64],
    statistics: GroupStatistics,
    *,
    divide_by_std: bool,
    epsilon: float,
) -> NDArray[np.float64]:
    """Compare with the group: ``x - mean``, or ``(x - mean) / (std + epsilon)``.

    Exactly 0 in a lonely group, and exactly 0 for the members of a group without spread. A row
    that is no member of the population its group's statistics were taken from (see
    `episode.episode_advantage`) may lie outside the range of its members. What lies beyond is not
    divided: a spread that knows nothing of it may be as small as it likes.

    Example:
        Members 0 and 2 (mean 1, std 1.41); a row at -3 is 3 below the least of them.

        >>> statistics = group_statistics(np.array([0.0, 2.0]), np.array([0, 0]), 1)
        >>> relative_to_group(
        ...     np.array([0.0, -3.0]), np.array([0, 0]), statistics, divide_by_std=True,
        ...     epsilon=1e-9).round(2).tolist()
        [-0.71, -3.71]

    Args:
        value_N: one value per row.
        code_N: the row's group.
        statistics: of these groups.
        divide_by_std: ``mean_std_norm`` rather than ``mean_norm``.
        epsilon: added to the std.
    """
    flat_K = statistics.flat_K
    inside_N = np.clip(value_N, statistics.low_K[code_N], statistics.high_K[code_N])
    beyond_N = value_N - inside_N
    distance_N = inside_N - statistics.mean_K[code_N]
    distance_N[flat_K[code_N]] = 0.0
    beyond_N[statistics.lonely_K[code_N]] = 0.0
    if divide_by_std:
        distance_N /= np.where(flat_K, 1.0, statistics.std_K + epsilon)[code_N]
    return distance_N + beyond_N


def whiten(value_N: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """Compare each row with all rows of the batch: ``(x - mean) / (std + epsilon)``.

    Exactly 0 everywhere in a batch without spread.

    Example:
        >>> whiten(np.array([1.0, 2.0, 3.0]), 1e-12).round(6).tolist()
        [-1.0, 0.0, 1.0]
    """
    one_group_N = np.zeros(len(value_N), dtype=np.int64)
    statistics = group_statistics(value_N, one_group_N, 1)
    return relative_to_group(value_N, one_group_N, statistics, divide_by_std=True, epsilon=epsilon)


def discounted_returns(
    reward_N: NDArray[np.float64],
    step_N: NDArray[np.integer],
    session_code_N: NDArray[np.int64],
    gamma: float,
) -> NDArray[np.float64]:
    """Discounted return of every row, ``R_t = r_t + gamma * R_{t+1}`` inside its session.

    Rows must be sorted by session and then step. One numpy call per time step, from the last to the
    first, over all sessions that are that long: the cost is linear in the number of rows.

    Example:
        >>> reward_N, one_session_N = np.array([0.0, 0.0, 8.0]), np.zeros(3, dtype=int)
        >>> discounted_returns(reward_N, np.arange(3), one_session_N, 0.5).tolist()
        [2.0, 4.0, 8.0]
    """
    num_rows = len(reward_N)
    step_N = step_N.astype(np.int64)  # bincount takes no unsigned 64-bit numbers
    # Slot num_rows holds 0, the return after the last step.
    return_N = np.zeros(num_rows + 1)
    following_N = np.arange(1, num_rows + 1)
    following_N[:-1][session_code_N[1:] != session_code_N[:-1]] = num_rows
    by_step = np.argsort(step_N, kind="stable")
    rows_per_step = np.split(by_step, np.cumsum(np.bincount(step_N))[:-1])
    for rows in reversed(rows_per_step):
        return_N[rows] = reward_N[rows] + gamma * return_N[following_N[rows]]
    return return_N[:num_rows]
