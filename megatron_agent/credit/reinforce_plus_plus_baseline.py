"""REINFORCE++ with a group baseline (Hu et al., arXiv 2501.03262) on agent rows.

The advantage of a row::

    D = R - mean(R of the task group),    A = D / (std(D of all rows) + epsilon)

Compared: the sessions of a task group, by total return, as in GRPO without its division. Then one
deviation, that of the whole batch, scales all groups alike, where GRPO blows a group up that hardly
differs.

With one row per session, as in the paper, D has mean 0 over the batch and whitening it is dividing
it. Here long sessions have many rows, so D has another mean; it is *not* subtracted again, for then
a group of equal returns would get credit for the lengths of other groups' sessions.

Exactly 0 in a group of equal returns, and in a group of one (or its score over the deviation, with
``lonely_episode=raw_score``). ``episode_statistics`` says whom the group's mean is taken over.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from megatron_agent.credit.assembly import assemble, step_returns
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.episode import episode_advantage
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.registry import register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import group_statistics


@register_credit("reinforce_plus_plus_baseline", needs=(), levels=("episode",))
def reinforce_plus_plus_baseline(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Return relative to the group's mean, over the deviation of the batch.

    Example:
        Group t has returns 3 and 1, group u 5 and 5: distances 1, -1, 0, 0, whose deviation is
        the root of 2/3.

        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_1_0", "u_0_0", "u_1_0"], step_reward_N=[3, 1, 5, 5],
        ...     episode_return_N=[3, 1, 5, 5], action_valid_N=[True] * 4)
        >>> credit = reinforce_plus_plus_baseline(rows, CreditConfig(gamma=1.0))
        >>> credit.advantage_N.round(4).tolist()
        [1.2247, -1.2247, 0.0, 0.0]
    """
    layout = Layout.of(rows)
    distance_N = episode_advantage(rows, dataclasses.replace(config, mode="mean_norm"), layout)
    batch = group_statistics(distance_N, np.zeros(rows.num_rows, dtype=np.int64), 1)
    divisor = 1.0 if batch.flat_K[0] else batch.std_K[0] + config.epsilon
    return assemble(
        rows,
        config,
        layout,
        return_N=step_returns(rows, config, layout),
        episode_N=distance_N / divisor,
    )
