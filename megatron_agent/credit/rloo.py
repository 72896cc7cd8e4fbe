"""RLOO (Ahmadian et al., "Back to Basics", arXiv 2402.14740) on agent rows.

The advantage of a row::

    A_i = R_i - mean over j != i of R_j = G / (G - 1) * (R_i - mean R)

Compared: each session of a task group with the mean of the *others*, by total return. The baseline
of a session does not hold its own return, so it is unbiased. Each session counts once, however
many steps it has, and there is no division by a deviation: ``mode`` and ``episode_statistics`` are
not read. Every row of a session gets the same credit.

Exactly 0 in a group of equal returns. A session without others gets 0, or its score
(``lonely_episode=raw_score``).
"""

from __future__ import annotations

import numpy as np

from megatron_agent.credit.assembly import assemble, step_returns
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.episode import episode_score
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.registry import register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import group_statistics, relative_to_group


@register_credit("rloo", needs=(), levels=("episode",))
def rloo(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Return of a session minus the mean return of the other sessions.

    Example:
        Returns 6, 3 and 0. The first is compared with 1.5, the second with 3, the third with 4.5.

        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_1_0", "t_2_0"],
        ...     step_reward_N=[6, 3, 0], episode_return_N=[6, 3, 0], action_valid_N=[True] * 3)
        >>> rloo(rows, CreditConfig(gamma=1.0)).advantage_N.tolist()
        [4.5, 0.0, -4.5]
    """
    layout = Layout.of(rows)
    score_N = episode_score(rows, config, layout)
    score_G = score_N[layout.first_row_G]
    group_code_G = layout.group_code_N[layout.first_row_G]
    statistics = group_statistics(score_G, group_code_G, layout.num_groups)
    distance_G = relative_to_group(
        score_G, group_code_G, statistics, divide_by_std=False, epsilon=config.epsilon
    )
    size_G = statistics.size_K[group_code_G]
    advantage_G = distance_G * (size_G / np.maximum(size_G - 1, 1))
    if config.lonely_episode == "raw_score":
        advantage_G[size_G == 1] = score_G[size_G == 1]
    # A penalty in the score sets a row apart from its session; without one the difference is 0.
    own_N = score_N - score_G[layout.session_code_N]
    if config.lonely_episode == "zero":
        own_N[size_G[layout.session_code_N] == 1] = 0.0
    return assemble(
        rows,
        config,
        layout,
        return_N=step_returns(rows, config, layout),
        episode_N=advantage_G[layout.session_code_N] + own_N,
    )
