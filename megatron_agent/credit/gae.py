"""PPO's advantages over the turns of an episode (Schulman et al., GAE, arXiv 1506.02438).

The advantage of a turn::

    delta_t = r_t + gamma * V_{t+1} - V_t
    A_t     = delta_t + gamma * lam * A_{t+1}
    target  = A_t + V_t

One time step is one turn: V_t is the critic's value of the state before turn t, as its prompt shows
it, and the next state is the prompt of the next turn of the *same* session. Compared: a turn with
what the critic expected of it; whitened (``algorithm.whiten_advantages``, as PPO does by default),
then with all rows of the batch. ``gamma`` and ``lam`` count turns, not tokens.

After the last turn the value is 0, whether the episode ended by itself, was truncated at
``env.max_steps`` or failed: nothing is bootstrapped. Running out of steps is part of the task here
(it is what an evaluation counts as a failure), and no row holds a state after the last one for the
critic to look at. An environment that truncates for a reason of its own would need that extra
state valued.

``return_N`` of the result is the critic's target, of raw rewards. Exactly 0 where the critic was
right about everything and advantages are not whitened; whitened, in a batch of equal advantages.
"""

from __future__ import annotations

import numpy as np

from megatron_agent.credit.assembly import assemble
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.penalty import penalty_in_step_returns
from megatron_agent.credit.registry import register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import discounted_returns, group_statistics, whiten


@register_credit("gae", needs=("value",), levels=("step",))
def gae(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Generalised advantage estimation over turns.

    Example:
        One session, reward 8 at the end; the critic expects 2 before each turn. With gamma and lam
        1/2 the last turn's delta is 8 - 2 = 6, the first one's 0 + 2/2 - 2 = -1, and 6/4 of the
        last reach it.

        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_0_1"], value_N=[2, 2],
        ...     step_reward_N=[0, 8], episode_return_N=[8, 8], action_valid_N=[True] * 2)
        >>> credit = gae(rows, CreditConfig(gamma=0.5, lam=0.5, whiten_advantages=False))
        >>> credit.advantage_N.tolist(), credit.return_N.tolist()
        ([0.5, 6.0], [2.5, 8.0])
    """
    assert rows.value_N is not None  # compute_credit has checked what the method needs
    layout = Layout.of(rows)
    next_value_N = np.zeros(rows.num_rows)
    same_session = layout.session_code_N[1:] == layout.session_code_N[:-1]
    next_value_N[:-1] = np.where(same_session, rows.value_N[1:], 0.0)
    delta_N = rows.step_reward_N + config.gamma * next_value_N - rows.value_N
    advantage_N = discounted_returns(
        delta_N, rows.step_N, layout.session_code_N, config.gamma * config.lam
    )
    target_N = advantage_N + rows.value_N
    step_N = advantage_N + penalty_in_step_returns(rows, config, layout)
    if config.whiten_advantages:
        step_N = whiten(step_N, config.epsilon)
    # How much of the targets' variance the critic explains: 1 perfect, 0 no better than a constant.
    # Of targets that are all equal there is none to explain.
    targets = group_statistics(target_N, np.zeros(rows.num_rows, dtype=np.int64), 1)
    metrics = {"credit/value/mean_over_rows": float(np.mean(rows.value_N))}
    if not targets.flat_K[0]:
        unexplained = float(np.var(advantage_N)) / float(np.var(target_N))
        metrics["credit/value_explained_variance/share"] = 1 - unexplained
    return assemble(rows, config, layout, return_N=target_N, step_N=step_N, metrics=metrics)
