"""GiGPO (Feng et al., "Group-in-Group Policy Optimization", arXiv 2505.10978).

Two comparisons, one inside the other, and their weighted sum::

    A = episode_advantage_w * A_E + step_advantage_w * A_S  (+ penalty, see penalty.py)

**Episode level, A_E** (Eq. 3). Compared: the sessions of one task group, by their total return.
All rows of a session get the same ``(R - mean) / F``, where F is 1 (``mean_norm``) or ``std +
epsilon`` (``mean_std_norm``, unbiased std). This part alone is GRPO: see `episode`.

**Step level, A_S.** Compared: all rows of one task group that were taken in the same state (equal
anchor, or similar text), by their discounted return ``R_t = r_t + gamma * R_{t+1}``, normalised
likewise: see `step_groups`. Time plays no part: a state seen twice in one session gives two members
unless ``repeated_states=first_visit``. Equal anchors of two tasks never meet.

Groups that cannot tell anything give exactly 0, not rounding noise: an episode group or a step
group whose values are all equal (`segments.SPREAD_TOLERANCE`), a state seen once, and a task
group with one session (unless ``lonely_episode=raw_score``).

Left out of the reference implementation (langfengQ/verl-agent) on purpose: padding rows inside
groups, and time taken from row order.
"""

from __future__ import annotations

from megatron_agent.credit.assembly import assemble, step_returns
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.episode import episode_advantage
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.penalty import penalty_in_step_returns
from megatron_agent.credit.registry import Level, register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.step_groups import equal_anchors, similar_texts, step_advantage


def _weighty_levels(config: CreditConfig) -> tuple[Level, ...]:
    """A level of weight 0 is none: a penalty inside it would reach nobody."""
    weights: tuple[tuple[Level, float], ...] = (
        ("episode", config.episode_advantage_w),
        ("step", config.step_advantage_w),
    )
    return tuple(level for level, weight in weights if weight > 0)


@register_credit("gigpo", needs=("anchor",), levels=(), levels_of=_weighty_levels)
def gigpo(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Episode-level plus step-level credit, see the head of this file.

    Args:
        rows: valid rows, sorted by (group, session, step).
        config: options.

    Example:
        One task, two sessions. The first finds the door and wins (returns 4 and 8 with gamma
        0.5), the second stays at the start: only the rows at the start can be compared.

        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_0_1", "t_1_0"], anchor_N=["start", "door", "start"],
        ...     step_reward_N=[0, 8, 0], episode_return_N=[8, 8, 0], action_valid_N=[True] * 3)
        >>> credit = gigpo(rows, CreditConfig(gamma=0.5))
        >>> credit.episode_advantage_N.tolist(), credit.step_advantage_N.tolist()
        ([4.0, 4.0, -4.0], [2.0, 0.0, -2.0])
        >>> credit.advantage_N.tolist()
        [6.0, 4.0, -6.0]
    """
    layout = Layout.of(rows)
    return_N = step_returns(rows, config, layout)
    if config.similarity is None:
        groups = equal_anchors(rows, layout)
    else:
        groups = similar_texts(rows, config.similarity, layout)
    step_N, metrics = step_advantage(
        return_N + penalty_in_step_returns(rows, config, layout), groups, config
    )
    return assemble(
        rows,
        config,
        layout,
        return_N=return_N,
        episode_N=episode_advantage(rows, config, layout),
        episode_w=config.episode_advantage_w,
        step_N=step_N,
        step_w=config.step_advantage_w,
        metrics=metrics,
    )
