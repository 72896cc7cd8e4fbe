"""HGPO (He et al., "Hierarchy-of-Groups Policy Optimization", arXiv 2602.22817).

GiGPO compares all steps taken in one state, although their prompts show different histories. HGPO
compares a step several times, each time with peers that share more of its past, and averages::

    A_t = sum over k of w_k A_t^(k),   w_k proportional to (k + 1)^alpha,   k = 1 .. K + 1

**Level k.** Compared: all rows of one task group whose last k observations, the current one
included, are equal, by their discounted return ``R_t``: ``(R - mean) / F``, where F is 1
(``mean_norm``) or ``std + epsilon`` (``mean_std_norm``, std over the members, not unbiased).
K is ``hgpo.history_length``, alpha ``hgpo.length_weight_alpha``. Level 1 has GiGPO's step groups,
and each level splits the groups of the one before. A step with fewer than k observations behind it
stays out of level k. ``repeated_states`` is not read: each visit of a state is a member.

**Which levels count.** A group that cannot tell anything, a lonely row or equal returns, gives no
comparison, and the weights of the others are scaled to sum to 1. A row without any comparison gets
0.

**No episode level**, unless ``hgpo.base_group`` puts it in as k = 0, with weight 1 and gigpo's
options.

As in the authors' recipe (langfengQ/verl-agent), but for what it takes for a comparison: it drops
a level also where a row happens to hit its group's mean exactly, and keeps an episode group of
equal returns whose float32 mean is off by rounding noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.assembly import assemble, step_returns
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.episode import episode_advantage
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.metrics import step_group_metrics, visit_metrics
from megatron_agent.credit.penalty import penalty_in_step_returns
from megatron_agent.credit.registry import register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import group_statistics, pair_codes, relative_to_group
from megatron_agent.credit.step_groups import StepGroups, equal_anchors


@register_credit(
    "hgpo",
    needs=("anchor",),
    levels=("step",),
    levels_of=lambda config: ("episode",) if config.hgpo.base_group else (),
)
def hgpo(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Step-level credit from nested, history-conditioned groups, see the head of this file.

    Example:
        Three sessions of one task see ``a, x``; ``b, x``; ``a, x`` and end with 9, 0 and 3. At
        ``x`` all three are compared (mean 4, weight 2), and those who came from ``a`` once more
        (mean 6, weight 3). The one from ``b`` has no such peer: its first comparison is all.

        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_0_1", "t_1_0", "t_1_1", "t_2_0", "t_2_1"],
        ...     anchor_N=["a", "x", "b", "x", "a", "x"], step_reward_N=[0, 9, 0, 0, 0, 3],
        ...     episode_return_N=[9, 9, 0, 0, 3, 3], action_valid_N=[True] * 6)
        >>> hgpo(rows, CreditConfig(gamma=1.0)).advantage_N.round(6).tolist()
        [3.0, 3.8, 0.0, -4.0, -3.0, -2.2]

        The first: ``(2 * (9 - 4) + 3 * (9 - 6)) / (2 + 3) = 3.8``.
    """
    layout = Layout.of(rows)
    return_N = step_returns(rows, config, layout)
    score_N = return_N + penalty_in_step_returns(rows, config, layout)
    states = equal_anchors(rows, layout)
    average = _WeightedAverage(rows.num_rows, config.hgpo.length_weight_alpha)
    metrics = visit_metrics(states.code_N, states.first_visit_M)
    num_levels = config.hgpo.history_length + 1
    metrics |= {_share_name(k): 0.0 for k in range(1, num_levels + 1)}
    if config.hgpo.base_group:
        everybody_N = np.arange(rows.num_rows)
        average.add(0, everybody_N, layout.group_code_N, episode_advantage(rows, config, layout))
    for level in _levels(rows, states, num_levels):
        score_M = score_N[level.member_M]
        statistics = group_statistics(score_M, level.code_M, level.num_groups, unbiased_std=False)
        advantage_M = relative_to_group(
            score_M,
            level.code_M,
            statistics,
            divide_by_std=config.mode == "mean_std_norm",
            epsilon=config.epsilon,
        )
        average.add(level.num_observations, level.member_M, level.code_M, advantage_M)
        if level.num_observations == 1:
            metrics |= step_group_metrics(statistics)
        num_with_peers = int(statistics.size_K[~statistics.lonely_K].sum())
        metrics[_share_name(level.num_observations)] = num_with_peers / rows.num_rows
    return assemble(
        rows, config, layout, return_N=return_N, step_N=average.value_N(), metrics=metrics
    )


def _share_name(num_observations: int) -> str:
    return f"credit/rows_with_peers_at_level_{num_observations}/share"


@dataclass(frozen=True, eq=False)
class _Level:
    """Rows grouped by their last ``num_observations`` observations."""

    num_observations: int
    member_M: NDArray[np.intp]
    code_M: NDArray[np.int64]
    num_groups: int


def _levels(rows: CreditRows, states: StepGroups, num_levels: int) -> Iterator[_Level]:
    """Level 1 with all rows, then each deeper one with the rows that have peers there."""
    everybody_N = np.arange(rows.num_rows)
    yield _Level(1, everybody_N, states.code_N, states.num_groups)
    level = _with_peers(1, everybody_N, states.code_N, states.num_groups)
    for num_observations in range(2, num_levels + 1):
        code_N = np.full(rows.num_rows, -1)
        code_N[level.member_M] = level.code_M
        # The last k observations are equal exactly if the last k - 1 are, here and one step before.
        # So who has no peers for k - 1 has none for k.
        member_M = (
            np.flatnonzero((code_N[1:] >= 0) & (code_N[:-1] >= 0) & (rows.step_N[1:] > 0)) + 1
        )
        if not member_M.size:
            return
        code_M, num_groups = pair_codes(code_N[member_M], code_N[member_M - 1])
        level = _with_peers(num_observations, member_M, code_M, num_groups)
        if not level.num_groups:
            return
        yield level


def _with_peers(
    num_observations: int,
    member_M: NDArray[np.intp],
    code_M: NDArray[np.int64],
    num_groups: int,
) -> _Level:
    """The level without groups of one."""
    has_peers_K = np.bincount(code_M, minlength=num_groups) > 1
    keep_M = has_peers_K[code_M]
    new_code_K = np.cumsum(has_peers_K) - 1
    return _Level(
        num_observations, member_M[keep_M], new_code_K[code_M[keep_M]], int(has_peers_K.sum())
    )


class _WeightedAverage:
    """Average of each row's comparisons, weighted by ``(k + 1)^alpha``."""

    def __init__(self, num_rows: int, alpha: float) -> None:
        self._alpha = alpha
        self._sum_N = np.zeros(num_rows)
        self._weight_N = np.zeros(num_rows)

    def add(
        self,
        num_observations: int,
        member_M: NDArray[np.intp],
        code_M: NDArray[np.int64],
        advantage_M: NDArray[np.float64],
    ) -> None:
        """Take a level in where its groups say anything: where any member's advantage is not 0."""
        speaks_K = np.bincount(code_M, weights=advantage_M != 0) > 0
        speaks_M = speaks_K[code_M]
        weight = float(num_observations + 1) ** self._alpha
        self._sum_N[member_M[speaks_M]] += weight * advantage_M[speaks_M]
        self._weight_N[member_M[speaks_M]] += weight

    def value_N(self) -> NDArray[np.float64]:
        """The averages; 0 for rows without any comparison."""
        return self._sum_N / np.where(self._weight_N > 0, self._weight_N, 1.0)
