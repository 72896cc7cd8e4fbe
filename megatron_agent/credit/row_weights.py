"""How much each row weighs in the loss.

The loss is a mean over tokens, so untouched (``token_mean``) a session weighs as much as it has
tokens: an agent that wanders for 50 steps has ten times the say of one that wins in 5. Multiplying
the advantages of a row by its weight multiplies its policy loss, clipped or not, because that loss
is linear in the advantage for each sign. KL and entropy terms stay unweighted.

Weights are scaled so that the mean weight over the batch's tokens is 1: switching between the three
does not change the size of a step, only who decides its direction.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.options import check_choice
from megatron_agent.credit.rows import CreditRows
from megatron_agent.credit.segments import codes_of, pair_codes
from megatron_agent.errors import CreditError

RowWeights = Literal["token_mean", "trajectory", "step"]


def row_weights(
    rows: CreditRows, response_length_N: NDArray[np.integer], how: RowWeights
) -> NDArray[np.float64]:
    """Weights to multiply each row's advantage with.

    Args:
        rows: real rows, without padding, in any order.
        response_length_N: tokens of each row that the loss sees (its mask's sum).
        how: ``token_mean``: 1 for all. ``trajectory``: each session has the same total weight,
            its tokens share it. ``step``: each row has the same total weight, its tokens share it.

    Returns:
        Weights with ``sum(weight * length) == sum(length)``. Rows without tokens get 0 and take no
        part, unless ``how`` is ``token_mean``.

    Raises:
        ConfigError: there is no such ``how``.
        CreditError: lengths that are no counts, or not one per row, or all 0.

    Example:
        Session 0 has rows of 2 and 6 tokens, session 1 one of 8. By ``step`` each row weighs 16/3
        in all; by ``trajectory`` each session 8, which is what they have.

        >>> rows = CreditRows.from_keys(
        ...     ["t_0_0", "t_0_1", "t_1_0"],
        ...     step_reward_N=[0] * 3, episode_return_N=[0] * 3, action_valid_N=[True] * 3)
        >>> length_N = np.array([2, 6, 8])
        >>> row_weights(rows, length_N, "trajectory").tolist()
        [1.0, 1.0, 1.0]
        >>> row_weights(rows, length_N, "step").round(4).tolist()
        [2.6667, 0.8889, 0.6667]
    """
    check_choice("algorithm.row_weights", how, get_args(RowWeights))
    length_N = _checked_lengths(rows, response_length_N)
    if how == "token_mean":
        return np.ones(rows.num_rows)
    unit_code_N = np.arange(rows.num_rows) if how == "step" else _session_codes(rows)
    unit_length_U = np.bincount(unit_code_N, weights=length_N)
    share = length_N.sum() / np.count_nonzero(unit_length_U)
    weight_N = np.zeros(rows.num_rows)
    np.divide(share, unit_length_U[unit_code_N], out=weight_N, where=length_N > 0)
    return weight_N


def _session_codes(rows: CreditRows) -> NDArray[np.int64]:
    group_code_N, _ = codes_of(rows.group_N)
    # Session numbers may be as large as an integer can be, too large to be codes of pairs.
    session_in_group_N = np.unique(rows.session_N, return_inverse=True)[1].reshape(-1)
    return pair_codes(group_code_N, session_in_group_N)[0]


def _checked_lengths(
    rows: CreditRows, response_length_N: NDArray[np.integer]
) -> NDArray[np.float64]:
    is_array = isinstance(response_length_N, np.ndarray)
    if (
        not is_array
        or response_length_N.shape != (rows.num_rows,)
        or response_length_N.dtype.kind not in "iu"
    ):
        found = type(response_length_N).__name__
        if is_array:
            found = f"{response_length_N.dtype} of shape {response_length_N.shape}"
        raise CreditError(
            f"response_length_N must be an integer array of shape ({rows.num_rows},), one count of "
            f"tokens per row, got {found}. Sum the response mask over tokens."
        )
    negative = np.flatnonzero(response_length_N < 0)
    if negative.size:
        row = int(negative[0])
        raise CreditError(
            f"response_length_N must be >= 0, got {response_length_N[row]} at {rows.place(row)}. "
            "Sum the response mask over tokens."
        )
    if not response_length_N.any():
        raise CreditError(
            "response_length_N must count a token somewhere, got 0 in every row. "
            "Check the response masks."
        )
    return response_length_N.astype(np.float64)
