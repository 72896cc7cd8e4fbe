"""GiGPO (Feng et al., "Group-in-Group Policy Optimization", arXiv 2505.10978).

Two comparisons, one inside the other, and their weighted sum::

    A = episode_advantage_w * A_E + step_advantage_w * A_S  (+ penalty, see penalty.py)

**Episode level, A_E** (Eq. 3). Compared: the sessions of one task group, by their total return.
All rows of a session get the same ``(R - mean) / F``, where F is 1 (``mean_norm``) or ``std +
epsilon`` (``mean_std_norm``, unbiased std). This part alone is GRPO: see `episode`.

**Step level, A_S.** Compared: all rows of one task group that were taken in the same state (equal
anchor), by their discounted return ``R_t = r_t + gamma * R_{t+1}``, normalised likewise. Time
plays no part: a state seen twice in one session gives two members. Equal anchors of two tasks
never meet.

Groups that cannot tell anything give exactly 0, not rounding noise: an episode group or a step
group whose values are all equal (`segments.SPREAD_TOLERANCE`), a state seen once, and a task
group with one session (unless ``lonely_episode=raw_score``).

Left out of the reference implementation (langfengQ/verl-agent) on purpose: padding rows inside
groups, time taken from row order, step groups by text similarity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.episode import episode_advantage
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.metrics import part_metrics, row_metrics, step_group_metrics
from megatron_agent.credit.penalty import penalty_after_normalising, penalty_in_scores
from megatron_agent.credit.registry import register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import (
    codes_of,
    discounted_returns,
    group_statistics,
    pair_codes,
    relative_to_group,
)


@register_credit("gigpo")
def gigpo(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Episode-level plus step-level credit, see the head of this file.

    Args:
        rows: valid rows, sorted by (group, session, step).
        config: options.

    Example:
        One task, two sessions. The first finds the door and wins (returns 4 and 8 with gamma
        0.5), the second stays at the start: only the rows at the start can be compared.

        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_0_1", "t_1_0"], anchor_N=["start", "door", "start"],
        ...     step_reward_N=[0, 8, 0], episode_return_N=[8, 8, 0], action_valid_N=[True] * 3)
        >>> credit = gigpo(rows, CreditConfig(gamma=0.5))
        >>> credit.episode_advantage_N.tolist(), credit.step_advantage_N.tolist()
        ([4.0, 4.0, -4.0], [2.0, 0.0, -2.0])
        >>> credit.advantage_N.tolist()
        [6.0, 4.0, -6.0]
    """
    layout = Layout.of(rows)
    episode_N = episode_advantage(rows, config, layout)
    return_N = discounted_returns(
        rows.step_reward_N, rows.step_N, layout.session_code_N, config.gamma
    )
    step_N, step_metrics = _step_advantage(rows, config, layout, return_N)
    penalty_N = penalty_after_normalising(rows, config)
    advantage_N = (
        config.episode_advantage_w * episode_N + config.step_advantage_w * step_N + penalty_N
    )
    metrics = row_metrics(rows, config, layout)
    metrics |= step_metrics | part_metrics(advantage_N, episode_N, step_N)
    return CreditResult(
        advantage_N=advantage_N,
        metrics=metrics,
        episode_advantage_N=episode_N,
        step_advantage_N=step_N,
        return_N=return_N,
        penalty_N=penalty_N,
    )


def _step_advantage(
    rows: CreditRows, config: CreditConfig, layout: Layout, return_N: NDArray[np.float64]
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Step-level part and the metrics of the step groups."""
    anchor_code_N, _ = codes_of(rows.anchor_N)
    step_code_N, num_step_groups = pair_codes(layout.group_code_N, anchor_code_N)
    score_N = return_N + penalty_in_scores(rows, config)
    statistics = group_statistics(score_N, step_code_N, num_step_groups)
    advantage_N = relative_to_group(
        score_N,
        step_code_N,
        statistics,
        divide_by_std=config.mode == "mean_std_norm",
        epsilon=config.epsilon,
    )
    return advantage_N, step_group_metrics(statistics)
