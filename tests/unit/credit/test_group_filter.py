"""Groups whose episodes can teach something."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from megatron_agent.credit import (
    CreditConfig,
    CreditRows,
    GroupSpread,
    compute_credit,
    groups_with_spread,
)
from megatron_agent.errors import CreditError

pytestmark = pytest.mark.unit

MakeRows = Callable[..., CreditRows]

SESSIONS = {
    "won": [(["s", "t"], [0, 9.9]), (["s"], [9.9]), (["s"], [9.9])],
    "fair": [(["s"], [0]), (["s", "t"], [0, 1])],
    "lonely": [(["s"], [5])],
    "nearly": [(["s"], [0.1 + 0.2]), (["s"], [0.3])],
}


def kept_rows(rows: CreditRows, spread: GroupSpread) -> np.ndarray:
    kept = {uid for uid, keep in zip(spread.uid_P, spread.keep_P, strict=True) if keep}
    return np.array([uid in kept for uid in rows.group_N])


def test_groups_of_equal_returns_and_lonely_ones_are_left_out(make_rows: MakeRows) -> None:
    spread = groups_with_spread(make_rows(SESSIONS))
    assert spread.uid_P == ("fair", "lonely", "nearly", "won")
    assert spread.keep_P.tolist() == [True, False, False, False]


def test_row_order_does_not_matter(make_rows: MakeRows) -> None:
    rows = make_rows(SESSIONS)
    order = np.random.default_rng(0).permutation(rows.num_rows)
    spread, mixed = groups_with_spread(rows), groups_with_spread(rows.take(order))
    assert mixed.uid_P == spread.uid_P
    np.testing.assert_array_equal(mixed.keep_P, spread.keep_P)


def test_where_returns_are_divided_by_length_the_quotients_decide(make_rows: MakeRows) -> None:
    rows = make_rows(
        {
            "quick": [(["s"], [1]), (["s", "t"], [0, 1])],
            "steady": [(["s"], [1]), (["s", "t"], [1, 1])],
        }
    )
    assert groups_with_spread(rows).keep_P.tolist() == [False, True]
    spread = groups_with_spread(rows, normalize_by_length=True)
    assert spread.keep_P.tolist() == [True, False]
    config = CreditConfig(gamma=1.0, normalize_by_length=True)
    credit = compute_credit("grpo", rows, config)
    np.testing.assert_array_equal(credit.advantage_N != 0, kept_rows(rows, spread))
    assert credit.metrics["credit/groups_without_spread/share"] == 0.5


@pytest.mark.parametrize("mode", ["mean_norm", "mean_std_norm"])
def test_what_is_kept_gets_episode_credit_and_nothing_else_does(
    make_rows: MakeRows, mode: str
) -> None:
    rows = make_rows(SESSIONS)
    credit = compute_credit("grpo", rows, CreditConfig(gamma=1.0, mode=mode))
    np.testing.assert_array_equal(
        credit.advantage_N != 0, kept_rows(rows, groups_with_spread(rows))
    )


def test_rows_that_are_not_valid_are_refused() -> None:
    rows = CreditRows.from_keys([], step_reward_N=[], episode_return_N=[], action_valid_N=[])
    with pytest.raises(CreditError, match="credit needs at least one row, got 0 rows"):
        groups_with_spread(rows)


def test_the_metric_counts_quotients_where_returns_are_divided_by_length(
    make_rows: MakeRows,
) -> None:
    rows = make_rows({"t": [(["s", "t"], [1, 1]), (["s"], [1])]})
    for divided, share in ((False, 0.0), (True, 1.0)):
        config = CreditConfig(gamma=1.0, normalize_by_length=divided)
        metrics = compute_credit("grpo", rows, config).metrics
        assert metrics["credit/groups_without_spread/share"] == share
