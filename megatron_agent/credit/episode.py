"""Episode-level credit: the sessions of one task group compared by their total return (Eq. 3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.penalty import penalty_in_scores
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import group_statistics, relative_to_group


def episode_score(rows: CreditRows, config: CreditConfig, layout: Layout) -> NDArray[np.float64]:
    """What each row's session is judged by, in the order of the rows.

    The session's return, divided by its number of steps with ``normalize_by_length``, plus the
    row's penalty when penalties go into scores. So scores of one session differ only under a
    penalty; a session as a whole counts with the score of its step 0, as in the reference
    implementation.
    """
    score_N = layout.compared_return_N(rows, normalize_by_length=config.normalize_by_length)
    return score_N + penalty_in_scores(rows, config, layout)


def episode_advantage(
    rows: CreditRows, config: CreditConfig, layout: Layout
) -> NDArray[np.float64]:
    """Each row's score relative to its task group, in the order of the rows.

    A group's mean and std are taken over its sessions (``episode_statistics=trajectory``) or over
    its rows (``row``). Exactly 0 where all scores are equal; in a group of one 0, or the score
    itself (``lonely_episode=raw_score``).

    Args:
        rows: valid rows, sorted by (group, session, step).
        config: options.
        layout: `Layout.of` the rows.
    """
    group_code_N = layout.group_code_N
    score_N = episode_score(rows, config, layout)
    if config.episode_statistics == "trajectory":
        counted_M = layout.first_row_G
    else:
        counted_M = np.arange(rows.num_rows)
    statistics = group_statistics(score_N[counted_M], group_code_N[counted_M], layout.num_groups)
    advantage_N = relative_to_group(
        score_N,
        group_code_N,
        statistics,
        divide_by_std=config.mode == "mean_std_norm",
        epsilon=config.epsilon,
    )
    if config.lonely_episode == "raw_score":
        lonely_N = statistics.lonely_K[group_code_N]
        # The reference takes 0 for the mean and 1 for the std here, and adds epsilon to that too.
        divisor = 1 + config.epsilon if config.mode == "mean_std_norm" else 1.0
        advantage_N[lonely_N] = score_N[lonely_N] / divisor
    return advantage_N
