"""The worked batch of docs/credit.md gives the numbers that stand there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_agent.credit import CreditConfig, CreditRows, compute_credit, credit_names

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[3] / "docs/credit.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- checked by")[2].partition("<!-- /checked")[0]
LINES = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("line", LINES, ids=[line[0] for line in LINES])
def test_the_table_is_right(line: list[str]) -> None:
    name, *numbers = line
    method, _, variant = name.partition(", ")
    rows = CreditRows.from_keys(
        ["t_0_0", "t_0_1", "t_1_0", "t_1_1", "t_2_0", "t_2_1"],
        anchor_N=["a", "x", "b", "x", "a", "x"],
        step_reward_N=[0, 8, 0, 0, 0, 4],
        episode_return_N=[8, 8, 0, 0, 4, 4],
        action_valid_N=[True] * 6,
        value_N=[2, 4, 0, 4, 2, 4],
    )
    options: dict[str, Any] = {"whiten_advantages": variant != "not whitened"}
    credit = compute_credit(method, rows, CreditConfig(gamma=0.5, lam=0.5, **options))
    np.testing.assert_allclose(credit.advantage_N, np.array(numbers, dtype=float), atol=6e-4)


def test_every_method_stands_in_the_table() -> None:
    assert {line[0].partition(",")[0] for line in LINES} == set(credit_names())
