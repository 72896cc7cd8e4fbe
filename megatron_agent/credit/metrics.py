"""Metrics of credit. Each name ends in what it is a mean or a share of.

In step samples a mean over rows is not a mean over sessions: a long session has many rows. So
``/mean_over_rows`` and ``/mean_over_sessions`` are told apart, and a plain ``/mean`` or
``/share`` is over the thing before the slash (``step_group_size/mean`` over step groups,
``lonely_step_rows/share`` over rows).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import GroupStatistics, group_statistics


def row_metrics(rows: CreditRows, config: CreditConfig, layout: Layout) -> dict[str, float]:
    """What the batch looks like: its groups, sessions, returns and invalid actions.

    ``groups_without_spread/share`` counts groups of two or more sessions with equal returns,
    which carry no episode signal; lonely groups carry none either and are counted in
    ``lonely_groups/share``.
    """
    num_groups = layout.num_groups
    first_N = rows.step_N == 0
    return_G = rows.episode_return_N[first_N]
    sessions = group_statistics(return_G, layout.group_code_N[first_N], num_groups)
    invalid_share = float(np.mean(~rows.action_valid_N))
    metrics = {
        "credit/rows": float(rows.num_rows),
        "credit/groups": float(num_groups),
        "credit/sessions": float(len(return_G)),
        "credit/sessions_per_group/mean": len(return_G) / num_groups,
        "credit/rows_per_session/mean": rows.num_rows / len(return_G),
        "credit/lonely_groups/share": float(np.mean(sessions.lonely_K)),
        "credit/groups_without_spread/share": float(np.mean(sessions.flat_K & ~sessions.lonely_K)),
        "credit/episode_return/mean_over_sessions": float(np.mean(return_G)),
        "credit/invalid_rows/share": invalid_share,
        "credit/penalised_rows/share": invalid_share if _penalises(config) else 0.0,
    }
    if rows.failed_N is not None:
        metrics["credit/failed_sessions/share"] = float(np.mean(rows.failed_N[first_N]))
    return metrics


def step_group_metrics(statistics: GroupStatistics) -> dict[str, float]:
    """How often states recur.

    ``step_rows_without_spread/share`` counts rows in groups of two or more equal returns.
    """
    size_K = statistics.size_K
    num_rows = int(size_K.sum())
    silent_K = statistics.flat_K & ~statistics.lonely_K
    return {
        "credit/step_groups": float(len(size_K)),
        "credit/step_group_size/mean": num_rows / len(size_K),
        "credit/step_group_size/median": float(np.median(size_K)),
        "credit/step_group_size/max": float(size_K.max()),
        "credit/step_group_size/mean_over_rows": float(np.sum(np.square(size_K)) / num_rows),
        "credit/lonely_step_rows/share": float(np.sum(statistics.lonely_K) / num_rows),
        "credit/step_rows_without_spread/share": float(np.sum(size_K[silent_K]) / num_rows),
    }


def part_metrics(
    advantage_N: NDArray[np.float64],
    episode_N: NDArray[np.float64],
    step_N: NDArray[np.float64] | None,
) -> dict[str, float]:
    """Size of the advantage and of its parts (before their weights)."""
    metrics = {
        "credit/adv_abs/mean_over_rows": float(np.mean(np.abs(advantage_N))),
        "credit/rows_without_credit/share": float(np.mean(advantage_N == 0)),
        "credit/episode_adv_abs/mean_over_rows": float(np.mean(np.abs(episode_N))),
    }
    if step_N is not None:
        metrics["credit/step_adv_abs/mean_over_rows"] = float(np.mean(np.abs(step_N)))
    return metrics


def _penalises(config: CreditConfig) -> bool:
    return config.use_invalid_action_penalty and config.invalid_action_penalty_coef > 0
