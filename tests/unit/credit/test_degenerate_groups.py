"""Groups that can tell nothing give exactly zero, and rounding noise is not a signal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from megatron_agent.credit import CreditConfig, CreditRows, compute_credit
from megatron_agent.credit.segments import SPREAD_TOLERANCE, group_statistics

pytestmark = pytest.mark.unit

MakeRows = Callable[..., CreditRows]
MODES = ["mean_norm", "mean_std_norm"]
STATISTICS = ["trajectory", "row"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("num_sessions", range(2, 17))
@pytest.mark.parametrize("reward", [9.9, 0.1, -0.3, 0.0, 10.0, 1e6 / 3])
def test_equal_returns_give_exactly_zero(
    make_rows: MakeRows, mode: str, statistics: str, num_sessions: int, reward: float
) -> None:
    rows = make_rows({"g": [(["s0", "s1", "s2"], [0, 0, reward])] * num_sessions})
    config = CreditConfig(gamma=0.95, mode=mode, episode_statistics=statistics)
    assert not compute_credit("gigpo", rows, config).advantage_N.any()


@pytest.mark.parametrize("mode", MODES)
def test_returns_equal_up_to_the_order_of_summation_give_exactly_zero(mode: str) -> None:
    one_way, other_way = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert one_way != other_way  # by one bit
    rows = CreditRows.from_keys(
        ["g_0_0", "g_0_1", "g_0_2", "g_1_0", "g_1_1", "g_1_2"],
        anchor_N=["start", "a", "b", "start", "c", "d"],
        step_reward_N=[0.1, 0.2, 0.3, 0.3, 0.2, 0.1],
        episode_return_N=[one_way] * 3 + [other_way] * 3,
        action_valid_N=[True] * 6,
    )
    credit = compute_credit("gigpo", rows, CreditConfig(gamma=1.0, mode=mode))
    assert credit.return_N[0] != credit.return_N[3]
    assert not credit.advantage_N.any()


@pytest.mark.parametrize("mode", MODES)
def test_a_small_true_difference_is_kept(make_rows: MakeRows, mode: str) -> None:
    rows = make_rows({"g": [(["s"], [1.0]), (["s"], [1.0 + 1e-6])]})
    credit = compute_credit("gigpo", rows, CreditConfig(gamma=1.0, mode=mode))
    assert credit.episode_advantage_N[0] < 0 < credit.episode_advantage_N[1]


def test_spread_is_measured_against_the_larger_of_one_and_the_values() -> None:
    def flat(*values: float) -> bool:
        return bool(group_statistics(np.array(values), np.zeros(len(values), int), 1).flat_K[0])

    assert flat(0.0, SPREAD_TOLERANCE)
    assert not flat(0.0, 2 * SPREAD_TOLERANCE)
    assert flat(-1e6, -1e6 + 0.5e-3)
    assert not flat(-1e6, -1e6 + 2e-3)


def test_a_group_mean_outside_its_equal_values_still_gives_zero() -> None:
    """The float mean of three times 0.1 is not 0.1."""
    values = np.full(3, 0.1)
    statistics = group_statistics(values, np.zeros(3, dtype=int), 1)
    assert statistics.mean_K[0] != 0.1
    assert statistics.flat_K[0]


def test_lonely_step_gets_no_step_credit(make_rows: MakeRows) -> None:
    rows = make_rows({"g": [(["s0", "only_a"], [0, 1]), (["s0", "only_b"], [0, 0])]})
    credit = compute_credit("gigpo", rows, CreditConfig(gamma=0.95))
    assert credit.step_advantage_N.tolist() == [0.475, 0.0, -0.475, 0.0]


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("name", ["gigpo", "grpo"])
def test_lonely_episode_gets_no_episode_credit(
    make_rows: MakeRows, name: str, statistics: str
) -> None:
    rows = make_rows({"g": [(["s0", "s1"], [0, 7])]})
    credit = compute_credit(name, rows, CreditConfig(gamma=0.95, episode_statistics=statistics))
    assert credit.advantage_N.tolist() == [0.0, 0.0]


def test_lonely_episode_may_keep_its_raw_score(make_rows: MakeRows) -> None:
    rows = make_rows({"g": [(["s0", "s1"], [0, 7])]})
    credit = compute_credit("grpo", rows, CreditConfig(gamma=0.95, lonely_episode="raw_score"))
    assert credit.advantage_N.tolist() == [7.0, 7.0]


def test_a_state_seen_twice_in_a_session_is_two_members(make_rows: MakeRows) -> None:
    rows = make_rows({"g": [(["s0", "s0"], [0, 8])]})
    credit = compute_credit("gigpo", rows, CreditConfig(gamma=0.5))
    assert credit.step_advantage_N.tolist() == [-2.0, 2.0]
