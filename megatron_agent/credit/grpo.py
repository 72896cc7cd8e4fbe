"""GRPO on agent rows (Shao et al., "DeepSeekMath", arXiv 2402.03300).

The advantage of a row::

    A = (R - mean(R of the task group)) / F

F is 1 (``mean_norm``) or ``std + epsilon`` (``mean_std_norm``; in a run verl's own switch
``algorithm.norm_adv_by_std_in_grpo`` decides). Compared: the sessions of a task group by their
total return, and that is all. Every row of a session gets the same credit, however good or bad the
step was.

The method to measure GiGPO against: same rows, same episode level, same options, no step level.
"""

from __future__ import annotations

from megatron_agent.credit.assembly import assemble, step_returns
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.episode import episode_advantage
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.registry import register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows


@register_credit(
    "grpo",
    needs=(),
    levels=(),
    levels_of=lambda config: ("episode",) if config.episode_advantage_w > 0 else (),
)
def grpo(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Episode-level credit alone: what `gigpo` gives with ``step_advantage_w=0``.

    Example:
        Two sessions of one task, returns 8 and 0: each lies 4 from their mean.

        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_0_1", "t_1_0"],
        ...     step_reward_N=[0, 8, 0], episode_return_N=[8, 8, 0], action_valid_N=[True] * 3)
        >>> grpo(rows, CreditConfig(gamma=1.0)).advantage_N.tolist()
        [4.0, 4.0, -4.0]
    """
    layout = Layout.of(rows)
    return assemble(
        rows,
        config,
        layout,
        return_N=step_returns(rows, config, layout),
        episode_N=episode_advantage(rows, config, layout),
        episode_w=config.episode_advantage_w,
    )
