"""Step groups: the rows of one task group that were taken in the same state."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.metrics import step_group_metrics, visit_metrics
from megatron_agent.credit.options import SimilarityOptions
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import (
    codes_of,
    group_statistics,
    pair_codes,
    relative_to_group,
)
from megatron_agent.errors import CreditError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class StepGroups:
    """Which rows are compared with each other as steps. They never cross task groups."""

    code_N: NDArray[np.int64]
    """0..num_groups-1, one per row."""
    num_groups: int
    first_visit_M: NDArray[np.intp]
    """Rows in which a session enters a group for the first time."""
    grouping_s: float | None = None
    """Seconds spent on comparing texts; None for equal anchors."""
    by_equality_share: float | None = None
    """Rows that comparing texts left to equality, over all rows; None for equal anchors."""


def equal_anchors(rows: CreditRows, layout: Layout) -> StepGroups:
    """Group rows with equal anchors."""
    assert rows.anchor_N is not None  # compute_credit has checked what the method needs
    anchor_code_N, _ = codes_of(rows.anchor_N)
    code_N, num_groups = pair_codes(layout.group_code_N, anchor_code_N)
    return StepGroups(code_N, num_groups, _first_visits(code_N, num_groups, layout))


def similar_texts(rows: CreditRows, options: SimilarityOptions, layout: Layout) -> StepGroups:
    """Group rows with similar anchor texts; one warning where there are too many to compare.

    Raises:
        CreditError: the rows have no anchor texts.
    """
    # The string-similarity library is needed by nobody else.
    from megatron_agent.credit.similarity import similarity_codes

    if rows.anchor_text_N is None:
        raise CreditError(
            "algorithm.gigpo.enable_similarity needs anchor_text_N, one text per row, got None. "
            "Hand the anchors' texts over, or set algorithm.gigpo.enable_similarity=false."
        )
    similar = similarity_codes(
        rows.anchor_text_N,
        layout.group_code_N,
        threshold=options.threshold,
        measure=options.measure,
        keep_numbers=options.keep_numbers,
        max_comparisons=options.max_comparisons,
    )
    by_equality_share = float(np.mean(similar.by_equality_N))
    if by_equality_share > 0:
        logger.warning(
            "Similar texts were searched in part: %d of %d task groups reached "
            "algorithm.gigpo.similarity_max_comparisons=%d, and %d of %d rows are grouped by equal "
            "text. Raise that key if the step may take longer "
            "(credit/similarity_grouping_s), raise algorithm.gigpo.similarity_thresh, or set "
            "algorithm.gigpo.similarity_measure=token.",
            len(np.unique(layout.group_code_N[similar.by_equality_N])),
            layout.num_groups,
            options.max_comparisons,
            np.count_nonzero(similar.by_equality_N),
            rows.num_rows,
        )
    return StepGroups(
        similar.code_N,
        similar.num_groups,
        _first_visits(similar.code_N, similar.num_groups, layout),
        grouping_s=similar.seconds,
        by_equality_share=by_equality_share,
    )


def step_advantage(
    score_N: NDArray[np.float64], groups: StepGroups, config: CreditConfig
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Each row's score relative to its step group, and the metrics of the groups.

    Exactly 0 in groups of one and in groups without spread. With ``first_visit`` later visits of a
    session are no members: they enter no mean and get 0.
    """
    num_rows = len(score_N)
    is_member_N = np.ones(num_rows, dtype=bool)
    if config.repeated_states == "first_visit":
        is_member_N[:] = False
        is_member_N[groups.first_visit_M] = True
    statistics = group_statistics(
        score_N[is_member_N], groups.code_N[is_member_N], groups.num_groups
    )
    advantage_N = relative_to_group(
        score_N,
        groups.code_N,
        statistics,
        divide_by_std=config.mode == "mean_std_norm",
        epsilon=config.epsilon,
    )
    advantage_N[~is_member_N] = 0.0
    metrics = step_group_metrics(statistics) | visit_metrics(groups.code_N, groups.first_visit_M)
    if groups.grouping_s is not None:
        metrics["credit/similarity_grouping_s"] = groups.grouping_s
    if groups.by_equality_share is not None:
        metrics["credit/rows_grouped_by_equality/share"] = groups.by_equality_share
    return advantage_N, metrics


def _first_visits(code_N: NDArray[np.int64], num_groups: int, layout: Layout) -> NDArray[np.intp]:
    # Rows are sorted by session and step: the first row of a (session, group) is its first visit.
    _, first_M = np.unique(layout.session_code_N * num_groups + code_N, return_index=True)
    return first_M
