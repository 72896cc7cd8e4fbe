"""Where the penalty for invalid actions goes, and which steps it reaches."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from megatron_agent.credit import (
    CreditConfig,
    CreditRows,
    check_options,
    compute_credit,
    register_credit,
    registry,
)
from megatron_agent.credit.options import HgpoOptions
from megatron_agent.errors import ConfigError

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


def test_both_as_in_the_reference_moves_score_and_step_return_but_no_earlier_step(
    make_rows: MakeRows,
) -> None:
    config = CreditConfig(
        gamma=1.0,
        episode_statistics="row",
        invalid_action_penalty_coef=1.0,
        invalid_action_penalty_mode="both",
    )
    credit = compute_credit("gigpo", make_rows(SESSIONS, invalid=["g_0_1"]), config)
    # Scores 10, 9, 0, 0: mean 4.75. Step scores: s0 10 and 0, s1 9 and 0.
    assert credit.episode_advantage_N.tolist() == [5.25, 4.25, -4.75, -4.75]
    assert credit.step_advantage_N.tolist() == [5.0, 4.5, -5.0, -4.5]
    assert credit.return_N.tolist() == [10.0, 10.0, 0.0, 0.0]  # raw
    assert not credit.penalty_N.any()


@pytest.mark.parametrize("coef", [0.1, 3.0])
def test_penalty_in_scores_under_std_has_a_size_that_the_group_sets(
    make_rows: MakeRows, coef: float
) -> None:
    config = CreditConfig(
        gamma=0.95,
        mode="mean_std_norm",
        invalid_action_penalty_coef=coef,
        invalid_action_penalty_mode="both",
    )
    rows = make_rows({"g": [(["s"], [0.0])] * 9}, invalid=["g_4_0"])
    credit = compute_credit("grpo", rows, config)
    assert credit.advantage_N[4] == pytest.approx(-8 / math.sqrt(9), rel=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_penalty_in_scores_past_step_0_is_not_divided_by_a_spread_of_zero(
    make_rows: MakeRows, mode: str
) -> None:
    """Per-trajectory statistics see the scores of step 0 only, which are equal here."""
    config = CreditConfig(gamma=0.95, mode=mode, invalid_action_penalty_mode="both")
    rows = make_rows({"g": [(["s0", "s1"], [0, 0])] * 3}, invalid=["g_1_1"])
    credit = compute_credit("grpo", rows, config)
    np.testing.assert_allclose(credit.advantage_N, [0, 0, 0, -0.1, 0, 0], atol=1e-15)


def test_penalty_in_scores_past_step_0_is_not_divided_by_a_tiny_spread(
    make_rows: MakeRows,
) -> None:
    config = CreditConfig(gamma=1.0, mode="mean_std_norm", invalid_action_penalty_mode="score")
    rows = make_rows({"g": [(["s0", "s1"], [0, 0]), (["s0", "s1"], [0, 1e-6])]}, invalid=["g_0_1"])
    credit = compute_credit("grpo", rows, config)
    # The lower of two: -1/sqrt(2) (less for epsilon), and 0.1 less for what was invalid.
    low = -5e-7 / (1e-6 / math.sqrt(2) + 1e-6)
    np.testing.assert_allclose(credit.advantage_N, [low, low - 0.1, -low, -low], rtol=1e-6)


def test_penalty_in_scores_past_step_0_is_divided_within_the_range_of_scores(
    make_rows: MakeRows,
) -> None:
    config = CreditConfig(
        gamma=1.0,
        mode="mean_std_norm",
        invalid_action_penalty_mode="score",
        invalid_action_penalty_coef=3.0,
        epsilon=1e-12,
    )
    rows = make_rows({"g": [(["s0", "s1"], [0, 0]), (["s0", "s1"], [0, 2])]}, invalid=["g_1_1"])
    # Scores 0 and 2: mean 1, std sqrt(2). The invalid row's is -1: 2 of its 3 within, 1 beyond.
    expected = [-1 / math.sqrt(2), -1 / math.sqrt(2), 1 / math.sqrt(2), -1 / math.sqrt(2) - 1]
    np.testing.assert_allclose(compute_credit("grpo", rows, config).advantage_N, expected)


def test_hgpo_takes_a_penalty_in_scores_with_its_episode_level_alone(make_rows: MakeRows) -> None:
    config = CreditConfig(
        gamma=1.0, invalid_action_penalty_mode="score", hgpo=HgpoOptions(base_group=True)
    )
    check_options("hgpo", config)
    rows = make_rows({"g": [(["s"], [0]), (["t"], [0])]}, invalid=["g_0_0"])
    # Scores -0.1 and 0, and nobody to compare steps with.
    np.testing.assert_allclose(compute_credit("hgpo", rows, config).advantage_N, [-0.05, 0.05])


def test_penalty_in_scores_of_a_lonely_episode_is_zero_or_in_the_raw_score(
    make_rows: MakeRows,
) -> None:
    rows = make_rows({"g": [(["s0", "s1"], [0, 7])]}, invalid=["g_0_1"])
    options = {"gamma": 0.95, "invalid_action_penalty_mode": "both"}
    zero = compute_credit("grpo", rows, CreditConfig(**options))
    raw = compute_credit("grpo", rows, CreditConfig(**options, lonely_episode="raw_score"))
    assert zero.advantage_N.tolist() == [0.0, 0.0]
    assert raw.advantage_N.tolist() == [7.0, 6.9]


@pytest.mark.parametrize("placement", ["separate", "score", "step_return", "both"])
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


# Rewards 0, 0, 8 (returns 2, 4, 8) and nothing, same states; gamma 0.5. With a coefficient of 4 and
# step 1 of session 0 invalid, the own penalties are 0, -4, 0 and with earlier steps -2, -4, 0.
LONG = {"g": [(["a", "b", "c"], [0, 0, 8]), (["a", "b", "c"], [0, 0, 0])]}


@pytest.mark.parametrize(
    ("mode", "reach", "episode", "step", "separate"),
    [
        # Scores 8 and 0, halves of the differences 2, 4, 8.
        ("separate", "own_step", [4, 4, 4], [1, 2, 4], [0, -4, 0]),
        ("separate", "earlier_steps", [4, 4, 4], [1, 2, 4], [-2, -4, 0]),
        # The session counts with its score of step 0: 8, or 6.
        ("score", "own_step", [4, 0, 4], [1, 2, 4], [0, 0, 0]),
        ("score", "earlier_steps", [3, 1, 5], [1, 2, 4], [0, 0, 0]),
        # Step returns 2, 0, 8, or 0, 0, 8.
        ("step_return", "own_step", [4, 4, 4], [1, 0, 4], [0, 0, 0]),
        ("step_return", "earlier_steps", [4, 4, 4], [0, 0, 4], [0, 0, 0]),
        ("both", "own_step", [4, 0, 4], [1, 0, 4], [0, 0, 0]),
        ("both", "earlier_steps", [3, 1, 5], [0, 0, 4], [0, 0, 0]),
    ],
)
def test_place_and_reach(
    make_rows: MakeRows,
    mode: str,
    reach: str,
    episode: list[float],
    step: list[float],
    separate: list[float],
) -> None:
    config = CreditConfig(
        gamma=0.5,
        invalid_action_penalty_coef=4.0,
        invalid_action_penalty_mode=mode,
        invalid_action_penalty_reach=reach,
    )
    credit = compute_credit("gigpo", make_rows(LONG, invalid=["g_0_1"]), config)
    assert credit.episode_advantage_N[:3].tolist() == episode
    assert credit.step_advantage_N[:3].tolist() == step
    assert credit.penalty_N[:3].tolist() == separate
    assert credit.return_N[:3].tolist() == [2, 4, 8]  # raw, whatever the penalty
    reached = 2 if reach == "earlier_steps" else 1
    assert credit.metrics["credit/penalised_rows/share"] == reached / 6
    total = 6 if reach == "earlier_steps" else 4
    assert credit.metrics["credit/penalty_abs/mean_over_rows"] == total / 6


def test_earlier_steps_with_step_return_is_a_penalty_in_the_reward(make_rows: MakeRows) -> None:
    options = {"gamma": 0.5, "whiten_advantages": False}
    config = CreditConfig(
        **options,
        invalid_action_penalty_coef=4.0,
        invalid_action_penalty_mode="step_return",
        invalid_action_penalty_reach="earlier_steps",
    )
    penalised = compute_credit("step_reinforce", make_rows(LONG, invalid=["g_0_1"]), config)
    rewards = {"g": [(["a", "b", "c"], [0, -4, 8]), (["a", "b", "c"], [0, 0, 0])]}
    expected = compute_credit("step_reinforce", make_rows(rewards), CreditConfig(**options))
    np.testing.assert_array_equal(penalised.advantage_N, expected.advantage_N)


@pytest.mark.parametrize("mode", ["step_return", "both"])
def test_gae_takes_it_before_whitening_and_keeps_it_from_the_critic(
    make_rows: MakeRows, mode: str
) -> None:
    options = {"gamma": 0.5, "invalid_action_penalty_mode": mode, "whiten_advantages": False}
    config = CreditConfig(**options, invalid_action_penalty_coef=4.0)
    clean = compute_credit("gae", make_rows(LONG), config)
    credit = compute_credit("gae", make_rows(LONG, invalid=["g_0_1"]), config)
    difference = credit.advantage_N - clean.advantage_N
    assert difference.tolist() == [0, -4, 0, 0, 0, 0]
    np.testing.assert_array_equal(credit.return_N, clean.return_N)


@pytest.mark.parametrize(
    ("name", "mode", "level"),
    [
        ("grpo", "step_return", "step"),
        ("rloo", "step_return", "step"),
        ("gae", "score", "episode"),
        ("step_reinforce", "score", "episode"),
        ("hgpo", "score", "episode"),
    ],
)
def test_a_place_that_a_method_has_not_is_refused(
    make_rows: MakeRows, name: str, mode: str, level: str
) -> None:
    config = CreditConfig(gamma=0.5, invalid_action_penalty_mode=mode)
    message = (
        f"actor_rollout_ref.actor.invalid_action_penalty_mode must name a place that {name} has, "
        f"and {name} has no {level} level, got {mode!r}. Use 'separate'."
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        compute_credit(name, make_rows(LONG), config)
    check_options(name, CreditConfig(gamma=0.5, invalid_action_penalty_mode="both"))
    off = CreditConfig(
        gamma=0.5, invalid_action_penalty_mode=mode, use_invalid_action_penalty=False
    )
    check_options(name, off)  # then it does not matter


def test_a_method_that_says_nothing_about_levels_may_have_any_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for table in ("_methods", "_facts"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    register_credit("foreign")(registry.credit_method("grpo"))
    for mode in ("score", "step_return"):
        check_options("foreign", CreditConfig(gamma=0.5, invalid_action_penalty_mode=mode))


def test_a_method_without_a_level_of_any_weight_is_refused(make_rows: MakeRows) -> None:
    config = CreditConfig(gamma=0.95, episode_advantage_w=0.0)
    message = (
        "algorithm.gigpo.episode_advantage_w must not be 0 with grpo, which weighs its episode "
        "level by it and has no other, got 0.0. Use 1.0."
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        compute_credit("grpo", make_rows(SESSIONS), config)
    # The others have another level, or do not read the weight.
    for name in ("gigpo", "rloo", "hgpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        assert compute_credit(name, make_rows(SESSIONS), config).advantage_N.any()


@pytest.mark.parametrize(
    ("mode", "weight", "level"),
    [("score", "episode_advantage_w", "episode"), ("step_return", "step_advantage_w", "step")],
)
def test_a_penalty_cannot_go_to_a_level_of_weight_0(mode: str, weight: str, level: str) -> None:
    options = {"invalid_action_penalty_mode": mode, weight: 0.0}
    with pytest.raises(ConfigError, match=f"gigpo has no {level} level, got '{mode}'"):
        check_options("gigpo", CreditConfig(gamma=0.95, **options))


@pytest.mark.parametrize("mode", ["score", "step_return", "both"])
def test_a_penalty_inside_a_lonely_group_is_charged_and_moves_nothing(
    make_rows: MakeRows, mode: str
) -> None:
    rows = make_rows({"t": [(["s0", "s1"], [0, 0])]}, invalid=["t_0_0"])
    credit = compute_credit(
        "gigpo", rows, CreditConfig(gamma=1.0, invalid_action_penalty_mode=mode)
    )
    assert credit.advantage_N.tolist() == [0.0, 0.0]
    assert credit.metrics["credit/penalised_rows/share"] == 0.5  # what is charged, see docs
