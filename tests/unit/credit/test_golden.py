"""The hand-checked batch in every mode (values computed with the reference implementation)."""

from __future__ import annotations

import numpy as np
import pytest

from megatron_agent.credit import CreditConfig, CreditRows, compute_credit

pytestmark = pytest.mark.unit

# Rows: session a (3 steps, wins), b (4, loses), c (2, wins) of group g; d (1, wins) of group h.
RETURNS = [9.025, 9.5, 10, 0, 0, 0, 0, 9.5, 10, 10]
STEP = {
    "mean_norm": [2.85, 6.3333, 0, -6.175, -3.1667, -3.1667, 0, 3.325, 0, 0],
    "mean_std_norm": [0.5324, 1.1547, 0, -1.1536, -0.5774, -0.5774, 0, 0.6211, 0, 0],
}
EPISODE = {  # of a session of g that wins, and of one that loses
    ("mean_norm", "row"): (4.4444, -5.5556),
    ("mean_norm", "trajectory"): (3.3333, -6.6667),
    ("mean_std_norm", "row"): (0.8433, -1.0541),
    ("mean_std_norm", "trajectory"): (0.5774, -1.1547),
}


@pytest.mark.parametrize(("mode", "statistics"), EPISODE)
@pytest.mark.parametrize(("lonely", "lonely_score"), [("zero", 0.0), ("raw_score", 10.0)])
def test_golden_batch(
    golden_rows: CreditRows, mode: str, statistics: str, lonely: str, lonely_score: float
) -> None:
    config = CreditConfig(
        gamma=0.95, mode=mode, episode_statistics=statistics, lonely_episode=lonely
    )
    credit = compute_credit("gigpo", golden_rows, config)
    win, loss = EPISODE[mode, statistics]
    episode = [win] * 3 + [loss] * 4 + [win] * 2 + [lonely_score]
    np.testing.assert_allclose(credit.return_N, RETURNS, atol=1e-12)
    np.testing.assert_allclose(credit.episode_advantage_N, episode, atol=5e-5)
    np.testing.assert_allclose(credit.step_advantage_N, STEP[mode], atol=5e-5)
    np.testing.assert_array_equal(
        credit.advantage_N, credit.episode_advantage_N + credit.step_advantage_N
    )


def test_weights_scale_the_two_parts(golden_rows: CreditRows) -> None:
    config = CreditConfig(gamma=0.95, step_advantage_w=0.5, episode_advantage_w=2.0)
    credit = compute_credit("gigpo", golden_rows, config)
    np.testing.assert_array_equal(
        credit.advantage_N, 2.0 * credit.episode_advantage_N + 0.5 * credit.step_advantage_N
    )


@pytest.mark.parametrize("mode", ["mean_norm", "mean_std_norm"])
@pytest.mark.parametrize("statistics", ["trajectory", "row"])
def test_grpo_is_gigpo_without_the_step_level(
    golden_rows: CreditRows, mode: str, statistics: str
) -> None:
    options = {"gamma": 0.95, "mode": mode, "episode_statistics": statistics}
    grpo = compute_credit("grpo", golden_rows, CreditConfig(**options))
    gigpo = compute_credit("gigpo", golden_rows, CreditConfig(**options, step_advantage_w=0.0))
    np.testing.assert_array_equal(grpo.advantage_N, gigpo.advantage_N)
    np.testing.assert_array_equal(grpo.return_N, gigpo.return_N)
    assert not grpo.step_advantage_N.any()
    assert "credit/step_adv_abs/mean_over_rows" not in grpo.metrics


def test_metrics_of_the_golden_batch(golden_rows: CreditRows) -> None:
    metrics = compute_credit("gigpo", golden_rows, CreditConfig(gamma=0.95)).metrics
    expected = {
        "credit/rows": 10,
        "credit/groups": 2,
        "credit/sessions": 4,
        "credit/sessions_per_group/mean": 2,
        "credit/rows_per_session/mean": 2.5,
        "credit/lonely_groups/share": 0.5,
        "credit/groups_without_spread/share": 0,
        "credit/episode_return/mean_over_sessions": 7.5,
        "credit/invalid_rows/share": 0,
        "credit/penalised_rows/share": 0,
        "credit/penalty_abs/mean_over_rows": 0,
        # g: s0 three times, s1 three times, s2 twice, s3 once; h: s0 once.
        "credit/step_groups": 5,
        "credit/step_group_size/mean": 2,
        "credit/step_group_size/p10": 1,
        "credit/step_group_size/p50": 2,
        "credit/step_group_size/p90": 3,
        "credit/step_group_size/max": 3,
        "credit/step_group_size/mean_over_rows": (9 + 9 + 4 + 1 + 1) / 10,
        "credit/lonely_step_rows/share": 0.2,
        "credit/step_rows_without_spread/share": 0.2,  # s2: both returns are 10
        "credit/anchor_hit_rows/share": 0.8,  # all but s3 and the row of h
        "credit/revisiting_rows/share": 0.1,  # b is in s1 twice
        "credit/rows_without_credit/share": 0.1,  # the one row of h
        "credit/episode_adv_abs/mean_over_rows": (5 * 10 / 3 + 4 * 20 / 3) / 10,
        "credit/step_adv_abs/mean_over_rows": np.abs(STEP["mean_norm"]).mean(),
        "credit/step_to_episode_adv_abs/ratio": np.abs(STEP["mean_norm"]).sum() / (130 / 3),
    }
    assert set(expected) | {"credit/adv_abs/mean_over_rows"} == set(metrics)
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, abs=1e-4), name


def test_failed_sessions_are_counted_over_sessions() -> None:
    rows = CreditRows.from_keys(
        ["g_0_0", "g_0_1", "g_0_2", "g_1_0"],
        anchor_N=["s"] * 4,
        step_reward_N=[0, 0, 1, 0],
        episode_return_N=[1, 1, 1, 0],
        action_valid_N=[True] * 4,
        failed_N=[True, True, True, False],
    )
    metrics = compute_credit("gigpo", rows, CreditConfig(gamma=0.95)).metrics
    assert metrics["credit/failed_sessions/share"] == 0.5
