"""Rows that no credit can be computed from are refused with a message that names the place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from megatron_agent.credit import CreditConfig, CreditRows, compute_credit
from megatron_agent.errors import CreditError

pytestmark = pytest.mark.unit

KEYS = ["my_task_0_0", "my_task_0_1", "my_task_1_0"]


def rows_with(keys: list[str] = KEYS, **columns: Any) -> CreditRows:
    num_rows = len(keys)
    defaults: dict[str, Any] = {
        "anchor_N": ["s"] * num_rows,
        "step_reward_N": [0.0] * num_rows,
        "episode_return_N": [0.0] * num_rows,
        "action_valid_N": [True] * num_rows,
    }
    return CreditRows.from_keys(keys, **(defaults | columns))


def refused(rows: CreditRows, message: str) -> None:
    with pytest.raises(CreditError, match=re.escape(message)):
        rows.validate()
    with pytest.raises(CreditError, match=re.escape(message)):
        compute_credit("gigpo", rows, CreditConfig(gamma=0.95))


def test_keys_are_split_from_the_right() -> None:
    rows = rows_with(["a_b_c_12_3", "__0_0"])
    assert rows.group_N.tolist() == ["a_b_c", "_"]
    assert rows.session_N.tolist() == [12, 0]
    assert rows.step_N.tolist() == [3, 0]


@pytest.mark.parametrize("key", ["", "a", "a_1", "_1_2", "a_x_1", "a_1_", "a_-1_0", "a_1_²"])
def test_a_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(CreditError, match=re.escape(f"got {key!r} at row 1. Use StepSample.key.")):
        rows_with(["a_0_0", key])


def test_good_rows_pass() -> None:
    rows_with().validate()
    rows_with(
        failed_N=[0, 0, 1], value_N=[0, 1, 2], log_prob_N=[-1.0] * 3, entropy_N=[0.5] * 3
    ).validate()


def test_flags_may_come_as_objects_but_not_as_anything() -> None:
    flags = np.array([True, False, 1], dtype=object)
    assert rows_with(action_valid_N=flags).action_valid_N.tolist() == [True, False, True]
    with pytest.raises(CreditError, match=r"action_valid_N must hold true or false .* got None"):
        rows_with(action_valid_N=[True, None, True])
    with pytest.raises(CreditError, match=r"failed_N must hold true or false .* got 'False'"):
        rows_with(failed_N=["False", "True", "True"])


def test_no_rows_are_refused() -> None:
    refused(rows_with([]), "credit needs at least one row, got 0 rows.")


@pytest.mark.parametrize("anchor", ["", None, 7])
def test_a_missing_anchor_is_refused(anchor: Any) -> None:
    refused(
        rows_with(anchor_N=["s", anchor, "s"]),
        f"anchor_N must be text that is not empty, got {anchor!r} at group 'my_task', session 0, "
        "step 1. Let the environment return an anchor",
    )


def test_text_of_numpy_passes_for_text() -> None:
    rows_with(anchor_N=np.array([np.str_("s")] * 3, dtype=object)).validate()


def test_a_row_that_occurs_twice_is_refused() -> None:
    refused(
        rows_with([*KEYS, "my_task_0_1"]),
        "a row must occur once, got group 'my_task', session 0, step 1 more than once. "
        "Drop padding rows before credit.",
    )


@pytest.mark.parametrize(
    ("keys", "found", "due"),
    [
        (["g_0_0", "g_0_2"], "session 0, step 2", 1),
        (["g_0_0", "g_3_1"], "session 3, step 1", 0),
        (["g_5_2"], "session 5, step 2", 0),
    ],
)
def test_a_gap_in_the_steps_is_refused(keys: list[str], found: str, due: int) -> None:
    refused(
        rows_with(keys),
        f"steps of a session must be 0, 1, 2, ... without gaps, got group 'g', {found} where "
        f"step {due} was due. Hand over all rows of every session.",
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name", ["step_reward_N", "episode_return_N", "value_N", "log_prob_N", "entropy_N"]
)
def test_a_value_that_is_not_finite_is_refused(name: str, value: float) -> None:
    refused(
        rows_with(**{name: [0.0, 0.0, value]}),
        f"{name} must be finite, got {value} at group 'my_task', session 1, step 0.",
    )


def test_an_episode_return_that_changes_inside_a_session_is_refused() -> None:
    refused(
        rows_with(episode_return_N=[1.0, 2.0, 0.0]),
        "episode_return_N must be the same on all rows of a session, got 2.0 at group 'my_task', "
        "session 0, step 1 and 1.0 one step before. Give every row the session's total.",
    )


def test_a_failure_that_changes_inside_a_session_is_refused() -> None:
    refused(
        rows_with(failed_N=[False, True, False]),
        "failed_N must be the same on all rows of a session, got True at group 'my_task', session "
        "0, step 1 and False one step before. Give every row the session's outcome.",
    )


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        (
            "step_reward_N",
            np.zeros(2),
            "float64 array of shape (3,), one value per row, got float64",
        ),
        (
            "step_reward_N",
            np.zeros(3, np.float32),
            "float64 array of shape (3,), one value per row",
        ),
        ("session_N", np.zeros(3), "integer array of shape (3,)"),
        ("anchor_N", np.array(["s"] * 3), "object (str) array of shape (3,)"),
        ("action_valid_N", np.ones(3), "bool array of shape (3,)"),
        ("value_N", [0.0] * 3, "one value per row, got list. Build the rows with"),
    ],
)
def test_a_column_of_another_length_or_type_is_refused(
    name: str, column: Any, message: str
) -> None:
    rows = rows_with()
    object.__setattr__(rows, name, column)
    refused(rows, f"{name} must be a ")
    refused(rows, message)


def test_unsigned_keys_work(make_rows: Callable[..., CreditRows]) -> None:
    rows = make_rows({"g": [(["s", "s"], [0, 1]), (["s"], [0])]})
    plain = compute_credit("gigpo", rows, CreditConfig(gamma=0.95))
    object.__setattr__(rows, "step_N", rows.step_N.astype(np.uint64))
    unsigned = compute_credit("gigpo", rows, CreditConfig(gamma=0.95))
    np.testing.assert_array_equal(plain.advantage_N, unsigned.advantage_N)


@pytest.mark.parametrize(
    ("keys", "columns", "message"),
    [
        ([7], {}, "row key must be .* got 7 at row 0"),
        (["g_99999999999999999999_0"], {}, "row key must be .* got 'g_9999"),
        (["g_0_0"], {"step_reward_N": ["x"]}, "step_reward_N must hold one real number per row"),
        (["g_0_0"], {"value_N": [1j]}, "value_N must hold one real number per row, got complex128"),
        (["g_0_0"], {"episode_return_N": [None]}, "episode_return_N must hold one real number"),
        (
            ["g_0_0"],
            {"action_valid_N": [[1], [1, 0]]},
            r"true or false per row, got \[\[1\], \[1, 0",
        ),
    ],
)
def test_a_column_of_something_else_is_named(keys: Any, columns: dict[str, Any], message: str):
    usual = {"step_reward_N": [0.0], "episode_return_N": [0.0], "action_valid_N": [True]}
    with pytest.raises(CreditError, match=message):
        CreditRows.from_keys(keys, **usual | columns)


def test_squares_that_overflow_are_not_taken_for_equal_rewards() -> None:
    keys = [f"g_{session}_0" for session in range(4)]
    reward_N = [1.0, 0.0, 1.0, 1e160]
    rows = CreditRows.from_keys(
        keys, step_reward_N=reward_N, episode_return_N=reward_N, action_valid_N=[True] * 4
    )
    config = CreditConfig(gamma=1.0, mode="mean_std_norm")
    with pytest.raises(CreditError, match=r"largest reward or return is 1e\+160 at group 'g'"):
        compute_credit("grpo", rows, config)


@pytest.mark.parametrize("name", ["grpo", "gigpo", "reinforce_plus_plus_baseline"])
def test_squares_whose_sum_overflows_are_not_taken_for_equal_rewards(name: str) -> None:
    keys = [f"g_{session}_0" for session in range(8)]
    reward_N = [1.2e154, -1.2e154] * 4  # squares of 1.4e308
    rows = CreditRows.from_keys(
        keys,
        anchor_N=["s"] * 8,
        step_reward_N=reward_N,
        episode_return_N=reward_N,
        action_valid_N=[True] * 8,
    )
    config = CreditConfig(gamma=1.0, mode="mean_std_norm")
    with pytest.raises(CreditError, match=r"largest reward or return is 1\.2e\+154 at group 'g'"):
        compute_credit(name, rows, config)
