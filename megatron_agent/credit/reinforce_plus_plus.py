"""REINFORCE++ (Hu et al., arXiv 2501.03262) on agent rows.

The advantage of a row::

    A = (R - mean(R of all rows)) / (std(R of all rows) + epsilon)

Compared: every row of the batch with every other, by the return of its session. Tasks are not told
apart, so a hard task's sessions are all bad and an easy one's all good; in exchange there is no
group, and one session per task is enough. A session counts once per row: long ones move the mean
more.

Exactly 0 in a batch without spread. Rows stand for the paper's tokens; how many tokens a row has
plays no part. ``mode`` is not read, and step returns move no advantage (see `step_reinforce` for
that): ``gamma`` is for ``return_N`` and for a penalty that reaches earlier steps.
"""

from __future__ import annotations

from megatron_agent.credit.assembly import assemble, step_returns
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.episode import episode_score
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.registry import register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import whiten


@register_credit("reinforce_plus_plus", needs=(), levels=("episode",))
def reinforce_plus_plus(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Return of the row's session, whitened over the rows of the batch.

    Example:
        Three rows of two tasks with returns 1, 2 and 3: mean 2, deviation 1.

        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_1_0", "u_0_0"],
        ...     step_reward_N=[1, 2, 3], episode_return_N=[1, 2, 3], action_valid_N=[True] * 3)
        >>> reinforce_plus_plus(rows, CreditConfig(gamma=1.0)).advantage_N.round(4).tolist()
        [-1.0, 0.0, 1.0]
    """
    layout = Layout.of(rows)
    return assemble(
        rows,
        config,
        layout,
        return_N=step_returns(rows, config, layout),
        episode_N=whiten(episode_score(rows, config, layout), config.epsilon),
    )
