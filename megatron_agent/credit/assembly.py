"""What every method does after it has compared: add the penalty, count, fill in the result."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.metrics import part_metrics, row_metrics
from megatron_agent.credit.penalty import penalty_after_normalising, penalty_of_rows
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import discounted_returns


def step_returns(rows: CreditRows, config: CreditConfig, layout: Layout) -> NDArray[np.float64]:
    """``R_t = r_t + gamma * R_{t+1}`` of raw rewards, for sorted rows."""
    return discounted_returns(rows.step_reward_N, rows.step_N, layout.session_code_N, config.gamma)


def assemble(
    rows: CreditRows,
    config: CreditConfig,
    layout: Layout,
    *,
    return_N: NDArray[np.float64],
    episode_N: NDArray[np.float64] | None = None,
    episode_w: float = 1.0,
    step_N: NDArray[np.float64] | None = None,
    step_w: float = 1.0,
    metrics: Mapping[str, float] | None = None,
) -> CreditResult:
    """``episode_w * episode_N + step_w * step_N`` plus a separate penalty, with metrics.

    Args:
        rows: valid rows, sorted by (group, session, step).
        config: options.
        layout: `Layout.of` the rows.
        return_N: see `CreditResult.return_N`.
        episode_N: episode-level part; None for a method without one.
        episode_w: its weight.
        step_N: step-level part; None for a method without one.
        step_w: its weight.
        metrics: further metrics of the method.
    """
    nothing_N = np.zeros(rows.num_rows)
    episode_part_N = nothing_N if episode_N is None else episode_N
    step_part_N = nothing_N if step_N is None else step_N
    penalty_N = penalty_after_normalising(rows, config, layout)
    advantage_N = episode_w * episode_part_N + step_w * step_part_N + penalty_N
    return CreditResult(
        advantage_N=advantage_N,
        metrics={
            **row_metrics(
                rows,
                layout,
                penalty_of_rows(rows, config, layout),
                normalize_by_length=config.normalize_by_length,
            ),
            **(metrics or {}),
            **part_metrics(advantage_N, episode_N, step_N),
        },
        episode_advantage_N=episode_part_N,
        step_advantage_N=step_part_N,
        return_N=return_N,
        penalty_N=penalty_N,
    )
