"""GRPO on agent rows: sessions of a task group are compared by their total return, and that is all.

The method to measure GiGPO against: same rows, same episode level, same options, no step level.
Every row of a session gets the same credit, however good or bad the step was.
"""

from __future__ import annotations

import numpy as np

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.episode import episode_advantage
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.metrics import part_metrics, row_metrics
from megatron_agent.credit.penalty import penalty_after_normalising
from megatron_agent.credit.registry import register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import discounted_returns


@register_credit("grpo")
def grpo(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Episode-level credit alone: what `gigpo` gives with ``step_advantage_w=0``.

    Every row of a session gets its session's return relative to the task group. Anchors are not
    looked at.
    """
    layout = Layout.of(rows)
    episode_N = episode_advantage(rows, config, layout)
    penalty_N = penalty_after_normalising(rows, config)
    advantage_N = config.episode_advantage_w * episode_N + penalty_N
    step_N = np.zeros(rows.num_rows)
    metrics = row_metrics(rows, config, layout)
    metrics |= part_metrics(advantage_N, episode_N, None)
    return CreditResult(
        advantage_N=advantage_N,
        metrics=metrics,
        episode_advantage_N=episode_N,
        step_advantage_N=step_N,
        return_N=discounted_returns(
            rows.step_reward_N, rows.step_N, layout.session_code_N, config.gamma
        ),
        penalty_N=penalty_N,
    )
