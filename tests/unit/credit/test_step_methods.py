"""Methods that judge steps without groups: REINFORCE on step returns, and GAE over turns."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_agent.credit import CreditConfig, CreditRows, compute_credit
from megatron_agent.errors import CreditError

pytestmark = pytest.mark.unit

MakeRows = Callable[..., CreditRows]
SESSIONS = {"g": [(["s", "t"], [1, 8]), (["s"], [0])]}


def rows_with_values(sessions: list[tuple[list[float], list[float]]]) -> CreditRows:
    """Sessions of one task, each with its rewards and values."""
    keys = [f"g_{i}_{t}" for i, (rewards, _) in enumerate(sessions) for t in range(len(rewards))]
    return CreditRows.from_keys(
        keys,
        step_reward_N=[r for rewards, _ in sessions for r in rewards],
        episode_return_N=[sum(rewards) for rewards, _ in sessions for _ in rewards],
        action_valid_N=[True] * len(keys),
        value_N=[v for _, values in sessions for v in values],
    )


def test_step_reinforce_is_the_discounted_return(make_rows: MakeRows) -> None:
    config = CreditConfig(gamma=0.5, whiten_advantages=False)
    credit = compute_credit("step_reinforce", make_rows(SESSIONS), config)
    assert credit.advantage_N.tolist() == credit.return_N.tolist() == [5.0, 8.0, 0.0]


def test_step_reinforce_may_be_whitened_over_the_rows(make_rows: MakeRows) -> None:
    credit = compute_credit("step_reinforce", make_rows(SESSIONS), CreditConfig(gamma=0.5))
    returns = np.array([5.0, 8.0, 0.0])
    expected = (returns - returns.mean()) / returns.std(ddof=1)
    np.testing.assert_allclose(credit.advantage_N, expected, rtol=1e-5)
    assert credit.return_N.tolist() == returns.tolist()


@pytest.mark.parametrize("reward", [9.9, 0.1])
def test_whitening_equal_returns_gives_exactly_zero(make_rows: MakeRows, reward: float) -> None:
    rows = make_rows({"g": [(["s"], [reward])] * 3})
    assert not compute_credit("step_reinforce", rows, CreditConfig(gamma=0.5)).advantage_N.any()


@pytest.mark.parametrize(
    ("lam", "advantages"),
    [
        # Deltas: 1 + 4/2 - 2 = 1; 8 - 4 = 4; 0 - 1 = -1.
        (0.0, [1.0, 4.0, -1.0]),
        (1.0, [1 + 0.5 * 4, 4.0, -1.0]),
        (0.5, [1 + 0.25 * 4, 4.0, -1.0]),
    ],
)
def test_gae_by_hand(lam: float, advantages: list[float]) -> None:
    rows = rows_with_values([([1, 8], [2, 4]), ([0], [1])])
    config = CreditConfig(gamma=0.5, lam=lam, whiten_advantages=False)
    credit = compute_credit("gae", rows, config)
    assert credit.advantage_N.tolist() == advantages
    # The critic's target.
    assert credit.return_N.tolist() == [advantages[0] + 2, advantages[1] + 4, advantages[2] + 1]


def test_the_target_is_of_advantages_before_whitening() -> None:
    rows = rows_with_values([([1, 8], [2, 4]), ([0], [1])])
    plain, whitened = (
        compute_credit("gae", rows, CreditConfig(gamma=0.5, lam=0.9, whiten_advantages=flag))
        for flag in (False, True)
    )
    np.testing.assert_array_equal(plain.return_N, whitened.return_N)
    assert abs(whitened.advantage_N.mean()) < 1e-12


def test_with_lam_1_the_target_is_the_discounted_return(make_rows: MakeRows) -> None:
    """Nothing is bootstrapped after the last step."""
    config = CreditConfig(gamma=0.9)
    gae = compute_credit("gae", make_rows(SESSIONS), config)
    plain = compute_credit("step_reinforce", make_rows(SESSIONS), config)
    np.testing.assert_allclose(gae.return_N, plain.return_N)


def test_a_critic_that_is_right_leaves_no_advantage() -> None:
    rows = rows_with_values([([0, 8], [4, 8]), ([0, 0], [0, 0])])
    config = CreditConfig(gamma=0.5, lam=0.9)
    credit = compute_credit("gae", rows, config)
    assert not credit.advantage_N.any()
    assert credit.metrics["credit/value_explained_variance/share"] == 1.0


def test_a_critic_that_says_one_thing_explains_nothing() -> None:
    rows = rows_with_values([([8], [3]), ([0], [3])])
    metrics = compute_credit("gae", rows, CreditConfig(gamma=0.5)).metrics
    assert metrics["credit/value_explained_variance/share"] == 0.0
    assert metrics["credit/value/mean_over_rows"] == 3.0


def test_of_equal_targets_there_is_nothing_to_explain(make_rows: MakeRows) -> None:
    rows = make_rows({"g": [(["s"] * 3, [0, 0, 0])] * 8})
    rows = dataclasses.replace(rows, value_N=np.random.default_rng(0).normal(size=rows.num_rows))
    metrics = compute_credit("gae", rows, CreditConfig(gamma=0.95, lam=1.0)).metrics
    assert "credit/value_explained_variance/share" not in metrics


def test_without_values_gae_says_what_to_do() -> None:
    rows = CreditRows.from_keys(
        ["g_0_0"], step_reward_N=[0], episode_return_N=[0], action_valid_N=[True]
    )
    message = (
        "credit method 'gae' needs value_N, one value per row, got None. Train with a critic "
        "(critic.enable=true) and hand its values over."
    )
    with pytest.raises(CreditError, match=re.escape(message)):
        compute_credit("gae", rows, CreditConfig(gamma=0.5))


@settings(max_examples=60, deadline=None)
@given(
    sessions=st.lists(
        st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    ),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.9, 1.0]),
)
def test_gae_is_the_recursion(
    sessions: list[list[tuple[float, float]]], gamma: float, lam: float
) -> None:
    expected = []
    for turns in sessions:
        advantage, next_value, backwards = 0.0, 0.0, []
        for reward, value in reversed(turns):
            advantage = reward + gamma * next_value - value + gamma * lam * advantage
            next_value = value
            backwards.append(advantage)
        expected += reversed(backwards)
    rows = rows_with_values([([r for r, _ in turns], [v for _, v in turns]) for turns in sessions])
    config = CreditConfig(gamma=gamma, lam=lam, whiten_advantages=False)
    credit = compute_credit("gae", rows, config)
    np.testing.assert_allclose(credit.advantage_N, expected, atol=1e-9)
