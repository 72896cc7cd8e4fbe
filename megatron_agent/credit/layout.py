"""Where sorted rows belong, as numbers that arrays can be indexed with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.rows import CreditRows


@dataclass(frozen=True, eq=False)
class Layout:
    """Groups and sessions of rows that are sorted by (group, session, step)."""

    group_code_N: NDArray[np.int64]
    """0..num_groups-1."""
    num_groups: int
    session_code_N: NDArray[np.int64]
    """Counts sessions over the whole batch: session 0 of two groups are two sessions."""
    first_row_G: NDArray[np.int64]
    """Each session's row of step 0, over all sessions of the batch."""

    @classmethod
    def of(cls, rows: CreditRows) -> Layout:
        """Lay out valid, sorted rows."""
        # In sorted rows a group begins wherever the code changes.
        begins_N = np.diff(rows.group_code_N, prepend=rows.group_code_N[0]) != 0
        group_code_N = np.cumsum(begins_N)
        num_groups = int(group_code_N[-1]) + 1
        # Steps start at 0, so in sorted rows a session begins wherever the step is 0.
        first_N = rows.step_N == 0
        return cls(group_code_N, num_groups, np.cumsum(first_N) - 1, np.flatnonzero(first_N))

    @property
    def num_steps_N(self) -> NDArray[np.int64]:
        """Length of each row's session, in steps."""
        return np.bincount(self.session_code_N)[self.session_code_N]

    def compared_return_N(
        self, rows: CreditRows, *, normalize_by_length: bool
    ) -> NDArray[np.float64]:
        """What episodes are compared by: their returns, or those divided by their steps."""
        return_N = rows.episode_return_N
        return return_N / self.num_steps_N if normalize_by_length else return_N
