"""Metrics of credit. Each name ends in what it is a mean or a share of.

In step samples a mean over rows is not a mean over sessions: a long session has many rows. So
``/mean_over_rows`` and ``/mean_over_sessions`` are told apart, and a plain ``/mean`` or
``/share`` is over the thing before the slash (``step_group_size/mean`` over step groups,
``lonely_step_rows/share`` over rows).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.layout import Layout
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import GroupStatistics, group_statistics


def row_metrics(
    rows: CreditRows,
    layout: Layout,
    penalty_of_row_N: NDArray[np.float64],
    *,
    normalize_by_length: bool,
) -> dict[str, float]:
    """What the batch looks like: its groups, sessions, returns and invalid actions.

    ``groups_without_spread/share`` counts groups of two or more sessions with equal returns,
    which carry no episode signal; lonely groups carry none either and are counted in
    ``lonely_groups/share``. ``penalised_rows/share`` and ``penalty_abs/mean_over_rows`` are of what
    is charged, before any normalising: a group that gives 0 gives 0 to a penalty inside it, too.

    Args:
        rows: sorted rows.
        layout: of the rows.
        penalty_of_row_N: the penalty of each row, wherever it goes.
        normalize_by_length: returns are compared divided by the number of steps.
    """
    num_groups = layout.num_groups
    return_G = rows.episode_return_N[layout.first_row_G]
    compared_N = layout.compared_return_N(rows, normalize_by_length=normalize_by_length)
    sessions = group_statistics(
        compared_N[layout.first_row_G], layout.group_code_N[layout.first_row_G], num_groups
    )
    metrics = {
        "credit/rows": float(rows.num_rows),
        "credit/groups": float(num_groups),
        "credit/sessions": float(len(return_G)),
        "credit/sessions_per_group/mean": len(return_G) / num_groups,
        "credit/rows_per_session/mean": rows.num_rows / len(return_G),
        "credit/lonely_groups/share": float(np.mean(sessions.lonely_K)),
        "credit/groups_without_spread/share": float(np.mean(sessions.flat_K & ~sessions.lonely_K)),
        "credit/episode_return/mean_over_sessions": float(np.mean(return_G)),
        "credit/invalid_rows/share": float(np.mean(~rows.action_valid_N)),
        "credit/penalised_rows/share": float(np.mean(penalty_of_row_N != 0)),
        "credit/penalty_abs/mean_over_rows": float(np.mean(np.abs(penalty_of_row_N))),
    }
    if rows.failed_N is not None:
        metrics["credit/failed_sessions/share"] = float(np.mean(rows.failed_N[layout.first_row_G]))
    return metrics


def step_group_metrics(statistics: GroupStatistics) -> dict[str, float]:
    """How often states recur: sizes of step groups, over groups unless the name says rows.

    ``lonely_step_rows/share`` and ``step_rows_without_spread/share`` (rows in groups of two or more
    equal returns) are shares of the members of all step groups.
    """
    size_K = statistics.size_K
    num_members = int(size_K.sum())
    silent_K = statistics.flat_K & ~statistics.lonely_K
    p10, p50, p90 = np.quantile(size_K, (0.1, 0.5, 0.9))
    return {
        "credit/step_groups": float(len(size_K)),
        "credit/step_group_size/mean": num_members / len(size_K),
        "credit/step_group_size/p10": float(p10),
        "credit/step_group_size/p50": float(p50),
        "credit/step_group_size/p90": float(p90),
        "credit/step_group_size/max": float(size_K.max()),
        "credit/step_group_size/mean_over_rows": float(np.sum(np.square(size_K)) / num_members),
        "credit/lonely_step_rows/share": float(np.sum(statistics.lonely_K) / num_members),
        "credit/step_rows_without_spread/share": float(np.sum(size_K[silent_K]) / num_members),
    }


def visit_metrics(
    step_code_N: NDArray[np.int64], first_visit_M: NDArray[np.intp]
) -> dict[str, float]:
    """Whether states recur between sessions or inside one.

    ``anchor_hit_rows/share`` counts rows whose state another session of the task saw too;
    ``revisiting_rows/share`` counts rows whose state the session itself had seen before.

    Args:
        step_code_N: step group of each row.
        first_visit_M: rows in which a session sees a state for the first time.
    """
    num_sessions_K = np.bincount(step_code_N[first_visit_M])
    return {
        "credit/anchor_hit_rows/share": float(np.mean(num_sessions_K[step_code_N] > 1)),
        "credit/revisiting_rows/share": 1.0 - len(first_visit_M) / len(step_code_N),
    }


def part_metrics(
    advantage_N: NDArray[np.float64],
    episode_N: NDArray[np.float64] | None,
    step_N: NDArray[np.float64] | None,
) -> dict[str, float]:
    """Size of the advantage and of its parts (before their weights).

    The ratio of the two levels is left out where the episode level is 0 everywhere.

    Args:
        advantage_N: of all rows.
        episode_N: episode level; None for methods without one.
        step_N: step level; None for methods without one.
    """
    metrics = {
        "credit/adv_abs/mean_over_rows": float(np.mean(np.abs(advantage_N))),
        "credit/rows_without_credit/share": float(np.mean(advantage_N == 0)),
    }
    for level, part_N in (("episode", episode_N), ("step", step_N)):
        if part_N is not None:
            metrics[f"credit/{level}_adv_abs/mean_over_rows"] = float(np.mean(np.abs(part_N)))
    episode_abs = metrics.get("credit/episode_adv_abs/mean_over_rows", 0.0)
    if step_N is not None and episode_abs > 0:
        step_abs = metrics["credit/step_adv_abs/mean_over_rows"]
        metrics["credit/step_to_episode_adv_abs/ratio"] = step_abs / episode_abs
    return metrics
