"""The penalty for invalid actions: where it goes, and which steps it reaches.

**Which steps** (``invalid_action_penalty_reach``). The penalty of a row is

- ``own_step`` (the default): ``P_t = -coef`` if the row's own action was invalid, else 0;
- ``earlier_steps``: ``P_t = -coef * sum over u >= t of gamma^(u-t) * invalid_u``, so the steps that
  led to the invalid action pay a discounted share, as they would if the environment had
  subtracted it.

**Where** (``invalid_action_penalty_mode``):

- ``separate`` (the default): added to the row's advantage after all normalising. Outcome and form
  stay two signals: the penalty has one size everywhere, also in a group whose returns are all
  equal, and the other rows of the group do not notice it.
- ``score``: added to the row's episode score, before the episode level normalises it.
- ``step_return``: added to the row's step return, before the step level normalises it.
- ``both``: added to both, each then normalised. With ``own_step`` this is what
  langfengQ/verl-agent does.

In the last three the penalty moves the group's mean, and under ``mean_std_norm`` its size depends
on the group: one invalid row among n otherwise equal ones gets ``-(n-1)/sqrt(n)`` whatever the
coefficient. Where the statistics are taken over sessions, only the penalty of step 0 is in them;
that of a later step is divided as far as it stays within the range of the sessions' scores, and
counts as it is beyond (``-coef`` where all scores are equal).

A method without an episode level refuses ``score``, one without a step level ``step_return``
(`check_penalty_mode`); under ``both`` the penalty goes where there is a place for it. Returns in
a `CreditResult`, and with them a critic's targets, never hold a penalty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.layout import Layout
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import discounted_returns
from megatron_agent.errors import ConfigError

_LEVEL_OF_MODE = {"score": "episode", "step_return": "step"}


def check_penalty_mode(method: str, levels: Sequence[str], config: CreditConfig) -> None:
    """Refuse a penalty that would have nothing to enter.

    Args:
        method: name of the credit method, for the message.
        levels: what the method scores: ``episode``, ``step`` or both.
        config: options.

    Raises:
        ConfigError: the mode names a level that the method has not.
    """
    mode = config.invalid_action_penalty_mode
    level = _LEVEL_OF_MODE.get(mode)
    if not penalises(config) or level is None or level in levels:
        return
    raise ConfigError(
        "actor_rollout_ref.actor.invalid_action_penalty_mode",
        f"must name a place that {method} has, and {method} has no {level} level",
        mode,
        "Use 'separate'.",
    )


def penalises(config: CreditConfig) -> bool:
    """Whether an invalid action costs anything."""
    return config.use_invalid_action_penalty and config.invalid_action_penalty_coef > 0


def penalty_of_rows(rows: CreditRows, config: CreditConfig, layout: Layout) -> NDArray[np.float64]:
    """``P_t`` of each row, wherever it goes.

    Example:
        >>> import dataclasses
        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_0_1"], step_reward_N=[0, 0], episode_return_N=[0, 0],
        ...     action_valid_N=[True, False])
        >>> own = CreditConfig(gamma=0.5, invalid_action_penalty_coef=1)
        >>> penalty_of_rows(rows, own, Layout.of(rows)).tolist()
        [0.0, -1.0]
        >>> earlier = dataclasses.replace(own, invalid_action_penalty_reach="earlier_steps")
        >>> penalty_of_rows(rows, earlier, Layout.of(rows)).tolist()
        [-0.5, -1.0]
    """
    if not penalises(config):
        return np.zeros(rows.num_rows)
    own_N = np.where(rows.action_valid_N, 0.0, -config.invalid_action_penalty_coef)
    if config.invalid_action_penalty_reach == "own_step":
        return own_N
    return discounted_returns(own_N, rows.step_N, layout.session_code_N, config.gamma)


def penalty_in_scores(
    rows: CreditRows, config: CreditConfig, layout: Layout
) -> NDArray[np.float64]:
    """To be added to each row's episode score before normalising: ``P_t`` or 0."""
    return _penalty_in(("score", "both"), rows, config, layout)


def penalty_in_step_returns(
    rows: CreditRows, config: CreditConfig, layout: Layout
) -> NDArray[np.float64]:
    """To be added to each row's step return before normalising: ``P_t`` or 0."""
    return _penalty_in(("step_return", "both"), rows, config, layout)


def penalty_after_normalising(
    rows: CreditRows, config: CreditConfig, layout: Layout
) -> NDArray[np.float64]:
    """To be added to each row's advantage: ``P_t`` or 0."""
    return _penalty_in(("separate",), rows, config, layout)


def _penalty_in(
    modes: Sequence[str], rows: CreditRows, config: CreditConfig, layout: Layout
) -> NDArray[np.float64]:
    if config.invalid_action_penalty_mode not in modes:
        return np.zeros(rows.num_rows)
    return penalty_of_rows(rows, config, layout)
