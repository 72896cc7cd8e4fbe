"""How far float32 can carry the reference implementation away from its own formula.

The reference computes ``(x - mean) / (std + epsilon)`` in float32, which keeps 24 binary digits.
Where the values of a group lie close together, most of these digits cancel in ``x - mean``, and
what is left is divided by a small std; without any spread, rounding noise is divided by almost
nothing. What comes out then depends on the order in which a library adds numbers up: the reference
is defined by its rounding there, not by its formula.

Whether a group is of this kind is decided from its values alone, never from results:

- A group is *ill-conditioned* when its std is at most a hundredth of its largest value. Not so a
  group of equal values whose sum is exact in float32 (all 10.0, say): there nothing is rounded.
- `GroupRounding.limit_N` says how far the reference's value may be off in an ill-conditioned group.
  For rows of all other groups it is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.segments import group_statistics

UNIT_ROUNDOFF = 2.0**-24
"""Largest relative error of one rounding to float32."""

ILL_CONDITIONED = 1e-2
"""Two of float32's seven decimal digits cancel where the std is this share of the largest value."""


@dataclass(frozen=True, eq=False)
class GroupRounding:
    """What float32 does to the normalised values of N rows in their groups."""

    code_N: NDArray[np.int64]
    """The row's group."""
    distance_N: NDArray[np.float64]
    """The row's value minus its group's mean."""
    low_N: NDArray[np.float64]
    """Lowest value in the row's group; ``high_N`` is the highest, ``std_N`` their std, and
    ``flat_N`` says that they are all equal, see `segments.SPREAD_TOLERANCE`."""
    high_N: NDArray[np.float64]
    std_N: NDArray[np.float64]
    flat_N: NDArray[np.bool_]
    limit_N: NDArray[np.float64]
    """How far the reference's value may be off; 0 in groups that are not ill-conditioned."""

    @property
    def ill_N(self) -> NDArray[np.bool_]:
        """Rows of ill-conditioned groups."""
        return self.limit_N > 0


def group_rounding(
    value_N: NDArray[np.float64],
    code_N: NDArray[np.int64],
    counts_N: NDArray[np.bool_],
    epsilon: float,
) -> GroupRounding:
    """Bound the rounding errors of ``(x - mean) / (std + epsilon)`` in float32.

    Args:
        value_N: exact values.
        code_N: the row's group, 0..K-1, each with a row that counts.
        counts_N: rows that mean and std are taken over.
        epsilon: added to the std.

    Example:
        In a group of equal values that float32 cannot hold anything of this size may come out;
        equal values that it can hold give 0.

        >>> one_group_N, all_N = np.zeros(3, dtype=int), np.ones(3, dtype=bool)
        >>> group_rounding(np.full(3, 9.9), one_group_N, all_N, 1e-6).limit_N.round(1).tolist()
        [2.4, 2.4, 2.4]
        >>> group_rounding(np.full(3, 10.0), one_group_N, all_N, 1e-6).limit_N.tolist()
        [0.0, 0.0, 0.0]
    """
    value_M, code_M = value_N[counts_N], code_N[counts_N]
    num_groups = int(code_N.max()) + 1
    statistics = group_statistics(value_M, code_M, num_groups)
    size_K, std_K = statistics.size_K, statistics.std_K
    largest_K = np.maximum(np.abs(statistics.low_K), np.abs(statistics.high_K))

    exact_K = _sum_is_exact(value_M, code_M, size_K)
    # Roundings of x - mean: of x, of a sum added up pairwise, of its division by the size. Rounding
    # the difference and the quotient adds a millionth of the result, far below any tolerance.
    num_roundings_K = np.where(exact_K, 1, 2 + np.ceil(np.log2(size_K)))
    shift_K = num_roundings_K * UNIT_ROUNDOFF * largest_K
    # Moving each value by up to s moves the std by up to s * sqrt(n / (n - 1)).
    std_shift_K = np.sqrt(2) * shift_K
    lowest_divisor_K = np.maximum(std_K - std_shift_K, 0.0) + epsilon

    distance_N = value_N - statistics.mean_K[code_N]
    off_N = shift_K[code_N] + np.abs(distance_N) * (std_shift_K / (std_K + epsilon))[code_N]
    flat_and_exact_K = exact_K & (statistics.low_K == statistics.high_K)
    ill_K = (std_K <= ILL_CONDITIONED * largest_K) & (size_K > 1) & ~flat_and_exact_K
    return GroupRounding(
        code_N=code_N,
        distance_N=distance_N,
        low_N=statistics.low_K[code_N],
        high_N=statistics.high_K[code_N],
        std_N=std_K[code_N],
        flat_N=statistics.flat_K[code_N],
        limit_N=np.where(ill_K[code_N], off_N / lowest_divisor_K[code_N], 0.0),
    )


def _sum_is_exact(
    value_M: NDArray[np.float64], code_M: NDArray[np.int64], size_K: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Groups that float32 adds up without rounding, whatever the order.

    So it is when all values are multiples of one power of two and their sum, in units of it, fits
    into 24 bits.
    """
    mantissa_M, exponent_M = np.frexp(value_M)
    whole_M = (mantissa_M * 2.0**53).astype(np.int64)
    unit_M = np.where(
        whole_M == 0, np.inf, np.ldexp((whole_M & -whole_M).astype(float), exponent_M - 53)
    )
    unit_K = np.full(len(size_K), np.inf)
    np.minimum.at(unit_K, code_M, unit_M)
    total_K = np.bincount(code_M, weights=np.abs(value_M), minlength=len(size_K))
    return total_K < unit_K * 2.0**24
