"""Methods that judge whole episodes, on a batch that can be checked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from megatron_agent.credit import CreditConfig, CreditRows, compute_credit

pytestmark = pytest.mark.unit

MakeRows = Callable[..., CreditRows]

# Returns: g 6 (1 step), 3 (2 steps), 0 (1 step); h 5 and 5.
SESSIONS = {
    "g": [(["s"], [6]), (["s", "t"], [0, 3]), (["s"], [0])],
    "h": [(["s"], [5]), (["s"], [5])],
}
SCORES = [6, 3, 3, 0, 5, 5]


def advantages(name: str, rows: CreditRows, **options: object) -> list[float]:
    config = CreditConfig(gamma=0.95, **({"epsilon": 1e-12} | options))
    return compute_credit(name, rows, config).advantage_N.tolist()


def test_rloo_compares_with_the_mean_of_the_others(make_rows: MakeRows) -> None:
    others = [1.5, 3, 3, 4.5, 5, 5]
    expected = np.subtract(SCORES, others).tolist()
    assert advantages("rloo", make_rows(SESSIONS)) == expected
    # Whatever the options of normalising say.
    options = {"mode": "mean_std_norm", "episode_statistics": "row"}
    assert advantages("rloo", make_rows(SESSIONS), **options) == expected


@pytest.mark.parametrize("num_sessions", [2, 3, 8])
def test_rloo_is_grpo_scaled_by_the_group_size(make_rows: MakeRows, num_sessions: int) -> None:
    rows = make_rows({"g": [(["s", "s"], [0, r]) for r in range(num_sessions)]})
    grpo = np.array(advantages("grpo", rows))
    expected = grpo * num_sessions / (num_sessions - 1)
    np.testing.assert_allclose(advantages("rloo", rows), expected)


def test_reinforce_plus_plus_whitens_over_the_rows_of_the_batch(make_rows: MakeRows) -> None:
    mean = sum(SCORES) / 6
    deviation = math.sqrt(sum((x - mean) ** 2 for x in SCORES) / 5)
    expected = [(x - mean) / deviation for x in SCORES]
    credit = advantages("reinforce_plus_plus", make_rows(SESSIONS))
    np.testing.assert_allclose(credit, expected, rtol=1e-9)


@pytest.mark.parametrize(("statistics", "mean"), [("trajectory", 3), ("row", 3)])
def test_the_baseline_form_centres_groups_and_scales_them_alike(
    make_rows: MakeRows, statistics: str, mean: float
) -> None:
    distances = [6 - mean, 3 - mean, 3 - mean, 0 - mean, 0, 0]
    deviation = math.sqrt(sum(x * x for x in distances) / 5)  # their own mean is 0 here
    expected = [x / deviation for x in distances]
    rows = make_rows(SESSIONS)
    credit = advantages("reinforce_plus_plus_baseline", rows, episode_statistics=statistics)
    np.testing.assert_allclose(credit, expected, rtol=1e-9)
    # GRPO's own division does not come on top.
    other = advantages("reinforce_plus_plus_baseline", rows, mode="mean_std_norm")
    np.testing.assert_allclose(other, credit)


def test_the_baseline_form_gives_nothing_to_equal_returns_beside_a_lopsided_group(
    make_rows: MakeRows,
) -> None:
    """One long failure gives the distances a mean of its own; it is not subtracted."""
    sessions = {
        "g": [(["s"], [6]), (["s"] * 5, [0] * 5)],
        "h": [(["s"], [5]), (["s"], [5])],
    }
    credit = advantages("reinforce_plus_plus_baseline", make_rows(sessions))
    assert credit[-2:] == [0, 0]
    assert credit[0] > 0 > credit[1]


@pytest.mark.parametrize(
    "name", ["grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
)
@pytest.mark.parametrize("reward", [9.9, 0.1, 0.0])
def test_a_batch_of_equal_returns_gives_exactly_zero(
    make_rows: MakeRows, name: str, reward: float
) -> None:
    rows = make_rows({"g": [(["s"], [reward])] * 3, "h": [(["s"], [reward])] * 2})
    assert not any(advantages(name, rows))


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_a_lonely_episode_gets_nothing_unless_asked(make_rows: MakeRows, name: str) -> None:
    sessions = {"g": [(["s", "t"], [0, 7])], "h": [(["s"], [2]), (["s"], [0])]}
    assert advantages(name, make_rows(sessions))[:2] == [0, 0]
    raw = advantages(name, make_rows(sessions), lonely_episode="raw_score")
    assert raw[0] == raw[1] > 0


def test_one_row_alone_gives_nothing(make_rows: MakeRows) -> None:
    rows = make_rows({"g": [(["s"], [7])]})
    for name in ("gigpo", "hgpo", "grpo", "rloo", "reinforce_plus_plus", "step_reinforce", "gae"):
        assert advantages(name, rows) == [0], name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Scores 6 / 1, 3 / 2 twice, 0.
        ("grpo", [3.5, -1.0, -1.0, -2.5, 0, 0]),
        ("rloo", [5.25, -1.5, -1.5, -3.75, 0, 0]),
    ],
)
def test_returns_may_be_divided_by_the_number_of_steps(
    make_rows: MakeRows, name: str, expected: list[float]
) -> None:
    credit = advantages(name, make_rows(SESSIONS), normalize_by_length=True)
    np.testing.assert_allclose(credit, expected)


def test_dividing_by_length_leaves_step_returns_and_metrics_alone(make_rows: MakeRows) -> None:
    rows = make_rows(SESSIONS)
    plain, divided = (
        compute_credit("gigpo", rows, CreditConfig(gamma=0.9, normalize_by_length=flag))
        for flag in (False, True)
    )
    np.testing.assert_array_equal(plain.step_advantage_N, divided.step_advantage_N)
    assert plain.episode_advantage_N[0] != divided.episode_advantage_N[0]
    name = "credit/episode_return/mean_over_sessions"
    assert plain.metrics[name] == divided.metrics[name] == 19 / 5


def test_rloo_with_a_penalty_in_the_score_charges_the_row_and_moves_the_baseline_by_step_0(
    make_rows: MakeRows,
) -> None:
    options = {"invalid_action_penalty_mode": "score", "invalid_action_penalty_coef": 1.0}
    late = make_rows(SESSIONS, invalid=["g_1_1"])
    np.testing.assert_allclose(advantages("rloo", late, **options), [4.5, 0, -1, -4.5, 0, 0])
    first = make_rows(SESSIONS, invalid=["g_2_0"])
    np.testing.assert_allclose(advantages("rloo", first, **options), [5, 0.5, 0.5, -5.5, 0, 0])
    lonely = make_rows({"g": [(["s", "t"], [0, 7])]}, invalid=["g_0_1"])
    assert advantages("rloo", lonely, **options) == [0, 0]
