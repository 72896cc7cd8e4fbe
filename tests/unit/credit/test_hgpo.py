"""HGPO: nested groups by shared history, checked by hand and against the formula spelt out."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_agent.credit import CreditConfig, CreditResult, CreditRows, HgpoOptions
from megatron_agent.credit import compute_credit as compute

pytestmark = pytest.mark.unit

MakeRows = Callable[..., CreditRows]

# Returns 9, 0, 3 on every step (gamma 1). At x all meet; only sessions 0 and 2 came from a.
HISTORIES = {"g": [(["a", "x"], [0, 9]), (["b", "x"], [0, 0]), (["a", "x"], [0, 3])]}


def hgpo(rows: CreditRows, mode: str = "mean_norm", **options: float) -> CreditResult:
    return compute("hgpo", rows, CreditConfig(gamma=1.0, mode=mode, hgpo=HgpoOptions(**options)))


def test_a_step_is_compared_once_per_shared_history(make_rows: MakeRows) -> None:
    credit = hgpo(make_rows(HISTORIES))
    # x: mean 4 (weight 2); x after a: mean 6 (weight 3). Level 3 has no members.
    expected = [3, (2 * 5 + 3 * 3) / 5, 0, -4, -3, (2 * -1 + 3 * -3) / 5]
    np.testing.assert_allclose(credit.advantage_N, expected)
    assert not credit.episode_advantage_N.any()


@pytest.mark.parametrize(
    ("alpha", "weights"), [(0.0, (1 / 2, 1 / 2)), (1.0, (2 / 5, 3 / 5)), (2.0, (4 / 13, 9 / 13))]
)
def test_alpha_weighs_longer_histories_more(
    make_rows: MakeRows, alpha: float, weights: tuple[float, float]
) -> None:
    credit = hgpo(make_rows(HISTORIES), length_weight_alpha=alpha)
    assert credit.advantage_N[1] == pytest.approx(weights[0] * 5 + weights[1] * 3)


def test_the_deviation_is_that_of_the_members_not_unbiased(make_rows: MakeRows) -> None:
    credit = hgpo(make_rows(HISTORIES), mode="mean_std_norm")
    assert credit.advantage_N[0] == pytest.approx(1, abs=1e-5)  # 9 and 3 at a: 3 over 3


def test_without_history_it_is_the_step_level_of_gigpo(golden_rows: CreditRows) -> None:
    gigpo = compute("gigpo", golden_rows, CreditConfig(gamma=1.0))
    credit = hgpo(golden_rows, history_length=0)
    np.testing.assert_allclose(credit.advantage_N, gigpo.step_advantage_N, atol=1e-12)


def test_the_history_length_is_a_bound(make_rows: MakeRows) -> None:
    rows = make_rows({"g": [(["a", "b", "x"], [0, 0, 1]), (["c", "b", "x"], [0, 0, 0])]})
    names = [f"credit/rows_with_peers_at_level_{k}/share" for k in (1, 2, 3)]
    shares = [hgpo(rows, history_length=5).metrics.get(name) for name in names]
    assert shares == [4 / 6, 2 / 6, 0.0]  # b and x; x after b; nobody shares all three
    assert names[2] not in hgpo(rows, history_length=1).metrics


def test_the_base_group_is_the_episode_level_with_weight_1(make_rows: MakeRows) -> None:
    credit = hgpo(make_rows(HISTORIES), base_group=True)
    # Returns 9, 0, 3: mean 4. Row 0: (1 * 5 + 2 * 3) / 3; row 2 has no other comparison.
    assert credit.advantage_N[0] == pytest.approx(11 / 3)
    assert credit.advantage_N[2] == pytest.approx(-4)


def test_levels_that_tell_nothing_leave_their_weight_to_the_others(make_rows: MakeRows) -> None:
    sessions = [(["a", "x"], [0, 4]), (["a", "x"], [0, 4]), (["b", "x"], [0, 1])]
    credit = hgpo(make_rows({"g": sessions}))
    # At x after a both have 4, so x alone speaks: mean 3.
    np.testing.assert_allclose(credit.advantage_N, [0, 1, 0, 1, 0, -2])


def test_a_row_at_its_groups_mean_keeps_that_comparison(make_rows: MakeRows) -> None:
    sessions = [(["a", "x"], [0, r]) for r in (0, 3, 6)] + [(["b", "x"], [0, 7])]
    credit = hgpo(make_rows({"g": sessions}))
    assert credit.advantage_N[3] == pytest.approx((2 * (3 - 4) + 3 * 0) / 5)


def test_a_lonely_session_gets_nothing(make_rows: MakeRows) -> None:
    assert not hgpo(make_rows({"g": [(["a", "b"], [0, 7])]})).advantage_N.any()


def spelt_out(rows: CreditRows, length: int, alpha: float) -> list[float]:
    """The formula with dictionaries, one row at a time (rows sorted, gamma 1, mean_norm)."""
    history: dict[tuple[str, int], list[str]] = defaultdict(list)
    members: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(list)
    keys_of_row = []
    returns = compute("hgpo", rows, CreditConfig(gamma=1.0)).return_N
    for uid, session, anchor, value in zip(
        rows.group_N, rows.session_N, rows.anchor_N, returns, strict=True
    ):
        seen = history[uid, session]
        seen.append(anchor)
        deepest = min(length + 1, len(seen))
        keys = [(uid, tuple(seen[-k:])) for k in range(1, deepest + 1)]
        keys_of_row.append(keys)
        for key in keys:
            members[key].append(value)
    result = []
    for keys, value in zip(keys_of_row, returns, strict=True):
        weighted = [
            ((len(key[1]) + 1) ** alpha, value - statistics.fmean(members[key]))
            for key in keys
            if max(members[key]) - min(members[key]) > 1e-7
        ]
        total = sum(weight for weight, _ in weighted)
        result.append(sum(w * a for w, a in weighted) / total if total else 0.0)
    return result


one_step = st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0, 9.9]))
one_group = st.lists(st.lists(one_step, min_size=1), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(one_group, min_size=1, max_size=2),
    length=st.integers(0, 3),
    alpha=st.sampled_from([0.0, 1.0, 2.5]),
)
def test_it_is_the_formula(
    make_rows: MakeRows, groups: list[list[list[tuple[str, float]]]], length: int, alpha: float
) -> None:
    sessions = {
        f"g{i}": [([a for a, _ in steps], [r for _, r in steps]) for steps in group]
        for i, group in enumerate(groups)
    }
    rows = make_rows(sessions)
    credit = hgpo(rows, history_length=length, length_weight_alpha=alpha)
    np.testing.assert_allclose(credit.advantage_N, spelt_out(rows, length, alpha), atol=1e-9)
