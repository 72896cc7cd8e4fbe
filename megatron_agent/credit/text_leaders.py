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

All of this is quadratic in the strings at worst, so it is paid for out of a `Budget` in work, not
in time: the same strings always get equally far. A comparison costs what it takes, the lengths
multiplied, and the bounds by counts what they take beside that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist

NUM_LETTER_BUCKETS = 32
"""Letters are counted by the last five bits of their code, which keep a to z apart. Letters that
share a bucket only make a bound weaker."""
NUM_PAIR_BUCKETS = 256

LETTER_PAIRS_PER_COMPARISON = 100_000
"""A comparison in a budget: of two strings of about 300 letters, each of which meets each of the
other. It takes 1 to 2 us on a slow core; for other lengths the time goes with their product."""
LETTER_COUNTS_COST = LETTER_PAIRS_PER_COMPARISON // 40
NEIGHBOUR_COUNTS_COST = LETTER_PAIRS_PER_COMPARISON // 5
CALL_COST = LETTER_PAIRS_PER_COMPARISON // 10
"""What a pair of strings takes whatever their lengths, as measured: the two bounds by counts, and
handing it over for the comparison."""

_ROUNDING = 1e-9
"""A score equal to the threshold counts as similar, whatever the rounding of ``1 - threshold``."""


@dataclass
class Budget:
    """The work that the strings of one task group may take.

    What does not fit ends it: nothing is paid afterwards, however little, so that where a search
    ends is one place and not a matter of which small strings still fit in.

    Example:
        >>> budget = Budget(left=10)
        >>> budget.pays(9), budget.pays(2), budget.pays(0), budget.is_spent
        (True, False, False, True)
    """

    left: int
    """Pairs of letters (`LETTER_PAIRS_PER_COMPARISON`); negative once something did not fit."""

    @classmethod
    def of(cls, max_comparisons: int) -> Budget:
        """A budget of so many comparisons of strings of about 300 letters."""
        return cls(max_comparisons * LETTER_PAIRS_PER_COMPARISON)

    @property
    def is_spent(self) -> bool:
        """Whether something did not fit."""
        return self.left < 0

    def pays(self, cost: int) -> bool:
        """Take ``cost`` off, or say that it does not fit."""
        self.left = self.left - cost if cost <= self.left else -1
        return not self.is_spent


def leaders(symbols: Sequence[str], threshold: float, budget: Budget) -> NDArray[np.int64]:
    """Position of each string's leader, shape (D,). Letter D: strings; B: buckets.

    A string joins the first leader before it that it is similar enough to, or else leads itself.
    Where the budget does not pay for all followers of a leader, the search ends before it: this
    string and all later ones that follow nobody yet are -1.

    Args:
        symbols: strings sorted by length, at least one.
        threshold: lowest score, in (0, 1].
        budget: what the search may cost; it is taken off there.

    Example:
        >>> leaders(["cat", "dog", "cats", "dogs"], 0.8, Budget.of(1)).tolist()
        [0, 1, 0, 1]

        Who follows "cat" takes 3 looks at letters, 1 at neighbours and 1 comparison: ``3 * 2_500 +
        20_000 + 10_000 + 3 * 4``. Then nothing is left for "dog".

        >>> leaders(["cat", "dog", "cats", "dogs"], 0.8, Budget(left=37_512)).tolist()
        [0, -1, 0, -1]
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
        later_D = np.arange(leader + 1, end_D[leader])
        if not budget.pays(LETTER_COUNTS_COST * len(later_D)):
            break
        length_sum_D = length_D[leader] + length_D[later_D]
        limit_D = np.floor((1 - threshold) * length_sum_D + _ROUNDING).astype(np.int64)

        window = letters_BD[:, leader + 1 : end_D[leader]]
        common_D = np.minimum(window, letters_BD[:, leader, None]).sum(axis=0, dtype=dtype)
        possible_D = length_sum_D - 2 * common_D.astype(np.int64) <= limit_D
        possible_D &= leader_D[later_D] < 0
        later_D, length_sum_D, limit_D = (x[possible_D] for x in (later_D, length_sum_D, limit_D))

        if not budget.pays(NEIGHBOUR_COUNTS_COST * len(later_D)):
            break
        common_D = np.minimum(pairs_DB[later_D], pairs_DB[leader]).sum(axis=1, dtype=dtype)
        possible_D = length_sum_D - 2 - 2 * common_D.astype(np.int64) <= 3 * limit_D
        later_D, limit_D = later_D[possible_D], limit_D[possible_D]

        letter_pairs = int(length_D[leader] * length_D[later_D].sum())
        if not budget.pays(CALL_COST * len(later_D) + letter_pairs):
            break
        leader_D[leader] = leader
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
