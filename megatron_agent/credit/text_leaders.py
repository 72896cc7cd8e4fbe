"""Who leads whom: the clustering behind `similarity`, on strings compared letter by letter.

Likeness is tested as a distance: the number of letters to delete and insert, ``a + b - 2c`` for
lengths a, b and a longest common subsequence of c. A score of at least the threshold is a distance
of at most ``(1 - threshold) * (a + b)``, and distances are whole numbers: nothing hangs on
rounding.

Three lower bounds of the distance come first, from cheap to dear. Each leaves out only pairs that
the exact comparison would refuse:

- the difference of the lengths;
- the counts of single letters: an insertion or deletion changes one of them by one;
- the counts of neighbouring letters: it changes at most three of them (breaks one pair, makes two).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist

NUM_LETTER_BUCKETS = 32
"""Letters are counted by the last five bits of their code, which keep a to z apart. Letters that
share a bucket only make a bound weaker."""
NUM_PAIR_BUCKETS = 256

_ROUNDING = 1e-9
"""A score equal to the threshold counts as similar, whatever the rounding of ``1 - threshold``."""


def leaders(symbols: Sequence[str], threshold: float) -> NDArray[np.int64]:
    """Position of each string's leader. Letter D: strings; B: buckets.

    A string joins the first leader before it that it is similar enough to, or else leads itself.

    Args:
        symbols: strings sorted by length, at least one.
        threshold: lowest score, in (0, 1].

    Example:
        >>> leaders(["cat", "dog", "cats", "dogs"], 0.8).tolist()
        [0, 1, 0, 1]
    """
    length_D = np.fromiter(map(len, symbols), np.int64, len(symbols))
    # Sums of counts stay below the longest length.
    dtype = np.uint16 if length_D[-1] < 2**16 else np.uint32
    codes_D = [np.frombuffer(s.encode("utf-32-le", "surrogatepass"), np.uint32) for s in symbols]
    letters_BD = np.ascontiguousarray(_count(codes_D, NUM_LETTER_BUCKETS, dtype).T)
    pairs_DB = _count([c[:-1] * 37 + c[1:] for c in codes_D], NUM_PAIR_BUCKETS, dtype)
    # A string is never shorter than its leader; the lengths alone say where the search can stop.
    end_D = np.searchsorted(length_D, length_D * (2 / threshold - 1) + _ROUNDING, side="right")

    leader_D = np.full(len(symbols), -1)
    for leader in range(len(symbols)):
        if leader_D[leader] >= 0:
            continue
        leader_D[leader] = leader
        later_D = np.arange(leader + 1, end_D[leader])
        length_sum_D = length_D[leader] + length_D[later_D]
        limit_D = np.floor((1 - threshold) * length_sum_D + _ROUNDING).astype(np.int64)

        window = letters_BD[:, leader + 1 : end_D[leader]]
        common_D = np.minimum(window, letters_BD[:, leader, None]).sum(axis=0, dtype=dtype)
        possible_D = length_sum_D - 2 * common_D.astype(np.int64) <= limit_D
        possible_D &= leader_D[later_D] < 0
        later_D, length_sum_D, limit_D = (x[possible_D] for x in (later_D, length_sum_D, limit_D))

        common_D = np.minimum(pairs_DB[later_D], pairs_DB[leader]).sum(axis=1, dtype=dtype)
        possible_D = length_sum_D - 2 - 2 * common_D.astype(np.int64) <= 3 * limit_D
        later_D, limit_D = later_D[possible_D], limit_D[possible_D]

        if later_D.size:
            followers = [symbols[position] for position in later_D.tolist()]
            distance_D = cdist(
                symbols[leader : leader + 1],
                followers,
                scorer=Indel.distance,
                score_cutoff=int(limit_D.max()),
            )[0]
            leader_D[later_D[distance_D <= limit_D]] = leader
    return leader_D


def _count(
    codes_D: Sequence[NDArray[np.uint32]], num_buckets: int, dtype: type[np.unsignedinteger]
) -> NDArray[np.unsignedinteger]:
    """How many codes of each string fall into each bucket, shape (D, B)."""
    count_DB = np.empty((len(codes_D), num_buckets), dtype)
    for position, codes in enumerate(codes_D):
        count_DB[position] = np.bincount(codes % num_buckets, minlength=num_buckets)
    return count_DB
