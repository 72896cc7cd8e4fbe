"""REINFORCE on steps (Williams 1992), as ROLL's agentic pipeline knows it.

The advantage of a row::

    A_t = R_t,    R_t = r_t + gamma * R_{t+1}

and, by default, whitened over the rows of the batch.

Compared: nobody, or, whitened, every row of the batch with every other. A step is judged by what
came after it, so later steps of a won episode get more than earlier ones (gamma below 1). No
groups, no anchors: the plainest method that looks at steps.

Without whitening (``algorithm.whiten_advantages=false``) rewards that are never negative reinforce
every action of a won episode and discourage none. Whitened, a batch of equal returns gives exactly
0.
"""

from __future__ import annotations

from megatron_agent.credit.assembly import assemble, step_returns
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.penalty import penalty_in_step_returns
from megatron_agent.credit.registry import register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import whiten


@register_credit("step_reinforce", needs=(), levels=("step",))
def step_reinforce(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Discounted return of the step.

    Example:
        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_0_1", "t_1_0"],
        ...     step_reward_N=[0, 8, 0], episode_return_N=[8, 8, 0], action_valid_N=[True] * 3)
        >>> plain = CreditConfig(gamma=0.5, whiten_advantages=False)
        >>> step_reinforce(rows, plain).advantage_N.tolist()
        [4.0, 8.0, 0.0]
        >>> step_reinforce(rows, CreditConfig(gamma=0.5)).advantage_N.round(4).tolist()
        [0.0, 1.0, -1.0]
    """
    layout = Layout.of(rows)
    return_N = step_returns(rows, config, layout)
    step_N = return_N + penalty_in_step_returns(rows, config, layout)
    if config.whiten_advantages:
        step_N = whiten(step_N, config.epsilon)
    return assemble(rows, config, layout, return_N=return_N, step_N=step_N)
