"""Which task groups can teach anything by their episodes (dynamic sampling of DAPO, Yu et al.,
arXiv 2503.14476): those whose sessions do not all have the same score.

Only the decision is made here. Sampling further tasks in place of those left out, and what to do
when no more may be sampled, is up to the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.layout import Layout
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import group_statistics


@dataclass(frozen=True, eq=False)
class GroupSpread:
    """The task groups of a batch and whether their scores differ."""

    uid_P: tuple[str, ...]
    """Group ids, sorted."""
    keep_P: NDArray[np.bool_]
    """Whether the scores of the group's sessions differ."""


def groups_with_spread(rows: CreditRows, *, normalize_by_length: bool = False) -> GroupSpread:
    """Find the groups whose sessions have different scores.

    Returns decide, before penalties. They count as equal within `segments.SPREAD_TOLERANCE`, as in
    the credit methods: a group that is kept here gets episode credit in a method that compares the
    episodes of a group, and one that is not gets none. A group of one has no spread.

    Args:
        rows: real rows of whole groups, without padding, in any order.
        normalize_by_length: compare returns divided by the number of steps, where the method does
            (``algorithm.episode_reward.normalize_by_length``).

    Raises:
        CreditError: the rows are not valid.

    Example:
        >>> rows = CreditRows.from_keys(
        ...     ["hard_0_0", "hard_1_0", "fair_0_0", "fair_1_0"], step_reward_N=[0, 0, 0, 1],
        ...     episode_return_N=[0, 0, 0, 1], action_valid_N=[True] * 4)
        >>> spread = groups_with_spread(rows)
        >>> spread.uid_P, spread.keep_P.tolist()
        (('fair', 'hard'), [True, False])
    """
    rows.validate()
    sorted_rows = rows.take(rows.canonical_order_N)
    layout = Layout.of(sorted_rows)
    first_G = layout.first_row_G
    score_N = layout.compared_return_N(sorted_rows, normalize_by_length=normalize_by_length)
    statistics = group_statistics(score_N[first_G], layout.group_code_N[first_G], layout.num_groups)
    # Codes follow first appearance, and sorted rows come group by group.
    uid_P = tuple(dict.fromkeys(sorted_rows.group_N.tolist()))
    return GroupSpread(uid_P, ~statistics.flat_K)
