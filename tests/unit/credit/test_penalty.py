"""Where the penalty for invalid actions goes, in both placements."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from megatron_agent.credit import CreditConfig, CreditRows, compute_credit

pytestmark = pytest.mark.unit

MakeRows = Callable[..., CreditRows]
SESSIONS = {"g": [(["s0", "s1"], [0, 10]), (["s0", "s1"], [0, 0])]}
NAMES = ["gigpo", "grpo"]
MODES = ["mean_norm", "mean_std_norm"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_separate_penalty_adds_minus_coef_to_invalid_rows_only(
    make_rows: MakeRows, name: str, mode: str
) -> None:
    config = CreditConfig(gamma=0.95, mode=mode, invalid_action_penalty_coef=0.25)
    clean = compute_credit(name, make_rows(SESSIONS), config)
    credit = compute_credit(name, make_rows(SESSIONS, invalid=["g_0_1"]), config)
    np.testing.assert_array_equal(credit.penalty_N, [0, -0.25, 0, 0])
    np.testing.assert_array_equal(credit.advantage_N, clean.advantage_N + credit.penalty_N)
    assert credit.metrics["credit/penalised_rows/share"] == 0.25


@pytest.mark.parametrize("mode", MODES)
def test_separate_penalty_keeps_its_size_in_a_group_without_spread(
    make_rows: MakeRows, mode: str
) -> None:
    rows = make_rows({"g": [(["s"], [0.0])] * 4}, invalid=["g_2_0"])
    credit = compute_credit("gigpo", rows, CreditConfig(gamma=0.95, mode=mode))
    assert credit.advantage_N.tolist() == [0.0, 0.0, -0.1, 0.0]
    assert not credit.episode_advantage_N.any()
    assert not credit.step_advantage_N.any()


def test_reference_penalty_moves_score_and_step_return_but_no_earlier_step(
    make_rows: MakeRows,
) -> None:
    config = CreditConfig(
        gamma=1.0,
        episode_statistics="row",
        invalid_action_penalty_coef=1.0,
        invalid_action_penalty_mode="reference",
    )
    credit = compute_credit("gigpo", make_rows(SESSIONS, invalid=["g_0_1"]), config)
    # Scores 10, 9, 0, 0: mean 4.75. Step scores: s0 10 and 0, s1 9 and 0.
    assert credit.episode_advantage_N.tolist() == [5.25, 4.25, -4.75, -4.75]
    assert credit.step_advantage_N.tolist() == [5.0, 4.5, -5.0, -4.5]
    assert credit.return_N.tolist() == [10.0, 10.0, 0.0, 0.0]  # raw
    assert not credit.penalty_N.any()


@pytest.mark.parametrize("coef", [0.1, 3.0])
def test_reference_penalty_under_std_has_a_size_that_the_group_sets(
    make_rows: MakeRows, coef: float
) -> None:
    config = CreditConfig(
        gamma=0.95,
        mode="mean_std_norm",
        invalid_action_penalty_coef=coef,
        invalid_action_penalty_mode="reference",
    )
    rows = make_rows({"g": [(["s"], [0.0])] * 9}, invalid=["g_4_0"])
    credit = compute_credit("grpo", rows, config)
    assert credit.advantage_N[4] == pytest.approx(-8 / math.sqrt(9), rel=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_reference_penalty_past_step_0_is_not_divided_by_a_spread_of_zero(
    make_rows: MakeRows, mode: str
) -> None:
    """Per-trajectory statistics see the scores of step 0 only, which are equal here."""
    config = CreditConfig(gamma=0.95, mode=mode, invalid_action_penalty_mode="reference")
    rows = make_rows({"g": [(["s0", "s1"], [0, 0])] * 3}, invalid=["g_1_1"])
    credit = compute_credit("grpo", rows, config)
    np.testing.assert_allclose(credit.advantage_N, [0, 0, 0, -0.1, 0, 0], atol=1e-15)


def test_reference_penalty_of_a_lonely_episode_is_zero_or_in_the_raw_score(
    make_rows: MakeRows,
) -> None:
    rows = make_rows({"g": [(["s0", "s1"], [0, 7])]}, invalid=["g_0_1"])
    options = {"gamma": 0.95, "invalid_action_penalty_mode": "reference"}
    zero = compute_credit("grpo", rows, CreditConfig(**options))
    raw = compute_credit("grpo", rows, CreditConfig(**options, lonely_episode="raw_score"))
    assert zero.advantage_N.tolist() == [0.0, 0.0]
    assert raw.advantage_N.tolist() == [7.0, 6.9]


@pytest.mark.parametrize("placement", ["separate", "reference"])
@pytest.mark.parametrize(
    "off", [{"use_invalid_action_penalty": False}, {"invalid_action_penalty_coef": 0.0}]
)
def test_penalty_can_be_switched_off(
    make_rows: MakeRows, placement: str, off: dict[str, float]
) -> None:
    config = CreditConfig(gamma=0.95, invalid_action_penalty_mode=placement, **off)
    clean = compute_credit("gigpo", make_rows(SESSIONS), config)
    credit = compute_credit("gigpo", make_rows(SESSIONS, invalid=["g_0_1"]), config)
    np.testing.assert_array_equal(credit.advantage_N, clean.advantage_N)
    assert credit.metrics["credit/penalised_rows/share"] == 0.0
    assert credit.metrics["credit/invalid_rows/share"] == 0.25
