"""What credit is: one advantage per row, the parts it was made of, and metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CreditResult:
    """Credit of N rows.

    For the methods of this package ``advantage_N`` is ``episode_advantage_N + step_advantage_N +
    penalty_N``, in `gigpo` and `grpo` with their two weights. A row's advantage goes to each of
    its response tokens.
    """

    advantage_N: NDArray[np.float64]
    metrics: dict[str, float]
    """Names end in their denominator: ``.../mean_over_rows`` is a mean over rows, not over
    sessions."""
    episode_advantage_N: NDArray[np.float64]
    """Episode-level part, before its weight; 0 for methods without one."""
    step_advantage_N: NDArray[np.float64]
    """Step-level part, before its weight; 0 for methods without one."""
    return_N: NDArray[np.float64]
    """Discounted return from each step on, of raw rewards (never penalised). From `gae` it is the
    critic's target, ``A_t + V_t`` before whitening."""
    penalty_N: NDArray[np.float64]
    """What the penalty adds by itself (mode ``separate``). All 0 when it was put into scores or
    returns."""

    def take(self, order: NDArray[np.intp]) -> CreditResult:
        """The result of the rows at these positions, in this order; the metrics stay."""
        return replace(
            self,
            advantage_N=self.advantage_N[order],
            episode_advantage_N=self.episode_advantage_N[order],
            step_advantage_N=self.step_advantage_N[order],
            return_N=self.return_N[order],
            penalty_N=self.penalty_N[order],
        )
