"""How rows weigh in the loss, by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest

from megatron_agent.credit import CreditRows, row_weights
from megatron_agent.errors import ConfigError, CreditError

pytestmark = pytest.mark.unit

KEYS = ["t_0_0", "t_0_1", "t_1_0", "u_0_0"]
LENGTHS = np.array([2, 6, 4, 12])  # sessions: 8, 4, 12; in all 24


def rows(keys: list[str] = KEYS) -> CreditRows:
    zeros, flags = [0.0] * len(keys), [True] * len(keys)
    return CreditRows.from_keys(
        keys, step_reward_N=zeros, episode_return_N=zeros, action_valid_N=flags
    )


@pytest.mark.parametrize(
    ("how", "weights"),
    [
        ("token_mean", [1, 1, 1, 1]),
        ("trajectory", [1, 1, 2, 8 / 12]),  # each of three sessions weighs 8
        ("step", [3, 1, 1.5, 0.5]),  # each of four rows weighs 6
    ],
)
def test_by_hand(how: str, weights: list[float]) -> None:
    weight_N = row_weights(rows(), LENGTHS, how)
    np.testing.assert_allclose(weight_N, weights)
    assert weight_N @ LENGTHS == pytest.approx(24)


def test_sessions_of_two_tasks_are_told_apart() -> None:
    weight_N = row_weights(rows(["t_0_0", "u_0_0"]), np.array([1, 3]), "trajectory")
    assert weight_N.tolist() == [2.0, pytest.approx(2 / 3)]


def test_rows_without_tokens_weigh_nothing_and_take_no_part() -> None:
    lengths = np.array([0, 6, 0, 6])
    assert row_weights(rows(), lengths, "step").tolist() == [0, 1, 0, 1]
    assert row_weights(rows(), lengths, "trajectory").tolist() == [0, 1, 0, 1]
    assert row_weights(rows(), lengths, "token_mean").tolist() == [1, 1, 1, 1]


def test_another_way_is_refused() -> None:
    message = (
        "algorithm.row_weights must be one of token_mean, trajectory, step, got 'trajectories'. "
        "Did you mean 'trajectory'?"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        row_weights(rows(), LENGTHS, "trajectories")


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (LENGTHS[:3], "an integer array of shape (4,), one count of tokens per row, got int64 of"),
        (LENGTHS * 1.0, "must be an integer array of shape (4,), one count of tokens per row, got"),
        ([2, 6, 4, 12], "one count of tokens per row, got list. Sum the response mask over tokens"),
        (LENGTHS - 3, "must be >= 0, got -1 at group 't', session 0, step 0. Sum the response"),
        (LENGTHS * 0, "must count a token somewhere, got 0 in every row. Check the response masks"),
    ],
)
def test_lengths_that_are_no_counts_are_refused(lengths: np.ndarray, message: str) -> None:
    with pytest.raises(CreditError, match=re.escape(message)):
        row_weights(rows(), lengths, "step")


def test_sessions_of_any_number_are_told_apart() -> None:
    far = 2**59  # 32 groups times this wrap around to the codes of group 0
    keys = [f"{group:02d}_{session}_0" for group in range(33) for session in (0, far - 1)]
    weight_N = row_weights(rows(keys), np.arange(1, len(keys) + 1), "trajectory")
    np.testing.assert_allclose(weight_N * np.arange(1, len(keys) + 1), (len(keys) + 1) / 2)
