"""The penalty for invalid actions, and where it goes.

``separate`` (the default): an invalid row's advantage gets ``-coef`` after all normalising.
Outcome and form stay two signals: the penalty has one size everywhere, also in a group whose
returns are all equal, and the other rows of the group do not notice it.

``reference``: as langfengQ/verl-agent does it, for parity. ``coef`` is subtracted from the
invalid row's own score and from its own step return (after discounting, so earlier steps do not
feel it), then both are normalised. The penalty moves the group's mean, and under
``mean_std_norm`` its size depends on the group: one invalid row among n otherwise equal ones gets
``-(n-1)/sqrt(n)`` whatever the coefficient.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.rows import CreditRows


def penalty_in_scores(rows: CreditRows, config: CreditConfig) -> NDArray[np.float64]:
    """To be added to each row's score and step return before normalising: 0 or ``-coef``."""
    return _penalty(rows, config, active=config.invalid_action_penalty_mode == "reference")


def penalty_after_normalising(rows: CreditRows, config: CreditConfig) -> NDArray[np.float64]:
    """To be added to each row's advantage: 0 or ``-coef``."""
    return _penalty(rows, config, active=config.invalid_action_penalty_mode == "separate")


def _penalty(rows: CreditRows, config: CreditConfig, *, active: bool) -> NDArray[np.float64]:
    if not (active and config.use_invalid_action_penalty):
        return np.zeros(rows.num_rows)
    return np.where(rows.action_valid_N, 0.0, -config.invalid_action_penalty_coef)
