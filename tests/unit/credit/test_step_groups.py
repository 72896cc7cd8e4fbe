"""Options of the step level: repeated states, and groups by similarity."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megatron_agent.credit import (
    CreditConfig,
    CreditResult,
    CreditRows,
    SimilarityOptions,
    compute_credit,
)
from megatron_agent.errors import CreditError

pytestmark = pytest.mark.unit

MakeRows = Callable[..., CreditRows]

# Session 0 sees s three times (returns 2, 4, 8 with gamma 0.5), session 1 once (return 0).
LOOP = {"g": [(["s", "s", "s"], [0, 0, 8]), (["s"], [0])]}


def gigpo(rows: CreditRows, **options: Any) -> CreditResult:
    return compute_credit("gigpo", rows, CreditConfig(gamma=0.5, **options))


def test_by_default_every_visit_is_a_member(make_rows: MakeRows) -> None:
    assert gigpo(make_rows(LOOP)).step_advantage_N.tolist() == [-1.5, 0.5, 4.5, -3.5]


def test_with_first_visit_later_ones_are_no_members(make_rows: MakeRows) -> None:
    credit = gigpo(make_rows(LOOP), repeated_states="first_visit")
    assert credit.step_advantage_N.tolist() == [1.0, 0.0, 0.0, -1.0]
    assert credit.metrics["credit/step_group_size/max"] == 2
    assert credit.metrics["credit/revisiting_rows/share"] == 0.5


def test_a_session_alone_in_a_state_has_no_peers_with_first_visit(make_rows: MakeRows) -> None:
    rows = make_rows({"g": [(["s", "s"], [0, 8]), (["t"], [0])]})
    assert gigpo(rows).step_advantage_N.tolist() == [-2.0, 2.0, 0.0]
    assert not gigpo(rows, repeated_states="first_visit").step_advantage_N.any()


def test_anchor_hits_are_between_sessions(make_rows: MakeRows) -> None:
    rows = make_rows({"g": [(["s", "s", "t"], [0, 0, 8]), (["t"], [0])], "h": [(["s"], [0])]})
    metrics = gigpo(rows).metrics
    assert metrics["credit/anchor_hit_rows/share"] == 2 / 5  # t; nobody else of g saw s
    assert metrics["credit/revisiting_rows/share"] == pytest.approx(1 / 5)
    assert metrics["credit/lonely_step_rows/share"] == 1 / 5  # s of h


def text_rows(texts: Sequence[Any] | None) -> CreditRows:
    return CreditRows.from_keys(
        ["g_0_0", "g_1_0", "h_0_0"],
        anchor_N=["1", "2", "3"],
        anchor_text_N=texts,
        step_reward_N=[8, 0, 4],
        episode_return_N=[8, 0, 4],
        action_valid_N=[True] * 3,
    )


def test_similar_texts_are_grouped_instead_of_equal_anchors() -> None:
    rows = text_rows(["You see a red lamp.", "You see a red  lamp.", "You see a red lamp."])
    assert not gigpo(rows).step_advantage_N.any()
    credit = gigpo(rows, similarity=SimilarityOptions(threshold=0.9))
    assert credit.step_advantage_N.tolist() == [4.0, -4.0, 0.0]  # another task stays out
    assert credit.metrics["credit/similarity_grouping_s"] >= 0
    for name in ("credit/similarity_grouping_s", "credit/rows_grouped_by_equality/share"):
        assert name in credit.metrics
        assert name not in gigpo(rows).metrics


def test_similarity_is_asked_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def codes(texts_N: np.ndarray, group_code_N: np.ndarray, **options: Any) -> SimpleNamespace:
        asked.update(options, texts=list(texts_N), groups=group_code_N.tolist())
        return SimpleNamespace(
            code_N=np.array([0, 0, 1]), num_groups=2, by_equality_N=np.zeros(3, bool), seconds=0.25
        )

    monkeypatch.setattr("megatron_agent.credit.similarity.similarity_codes", codes)
    options = SimilarityOptions(
        threshold=0.7, measure="token", keep_numbers=False, max_comparisons=7
    )
    credit = gigpo(text_rows(["a", "b", ""]), similarity=options)
    assert asked == {
        "threshold": 0.7,
        "measure": "token",
        "keep_numbers": False,
        "max_comparisons": 7,
        "texts": ["a", "b", ""],
        "groups": [0, 0, 1],
    }
    assert credit.metrics["credit/similarity_grouping_s"] == 0.25


def test_texts_beyond_the_bound_are_counted_and_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Two texts of 400 letters are 160,000 pairs of letters, more than the 100,000 of the bound.
    rows = text_rows(["a" * 400, "a" * 399 + "b", "a"])
    credit = gigpo(rows, similarity=SimilarityOptions(threshold=0.9, max_comparisons=1))
    assert not credit.step_advantage_N.any()
    assert credit.metrics["credit/rows_grouped_by_equality/share"] == 2 / 3
    (message,) = caplog.messages
    assert message.startswith(
        "Similar texts were searched in part: 1 of 2 task groups reached algorithm.gigpo."
        "similarity_max_comparisons=1, and 2 of 3 rows are grouped by equal text. Raise that key"
    )
    caplog.clear()
    credit = gigpo(rows, similarity=SimilarityOptions(threshold=0.9))
    assert credit.step_advantage_N.tolist() == [4.0, -4.0, 0.0]
    assert credit.metrics["credit/rows_grouped_by_equality/share"] == 0
    assert not caplog.messages


def test_similarity_without_texts_is_refused() -> None:
    message = (
        "algorithm.gigpo.enable_similarity needs anchor_text_N, one text per row, got None. Hand "
        "the anchors' texts over, or set algorithm.gigpo.enable_similarity=false."
    )
    with pytest.raises(CreditError, match=re.escape(message)):
        gigpo(text_rows(None), similarity=SimilarityOptions())


def test_a_state_that_is_no_text_is_refused_by_place() -> None:
    message = (
        "anchor_text_N must be text, got 7 at group 'g', session 1, step 0. Anchors of other types "
        "are compared by equality: set algorithm.gigpo.enable_similarity=false."
    )
    with pytest.raises(CreditError, match=re.escape(message)):
        gigpo(text_rows(["a", 7, "b"]))


def test_the_ratio_of_the_levels_is_left_out_without_an_episode_level(make_rows: MakeRows) -> None:
    name = "credit/step_to_episode_adv_abs/ratio"
    assert gigpo(make_rows(LOOP)).metrics[name] == pytest.approx(10 / 4 / 4)
    equal = make_rows({"g": [(["s", "t"], [0, 8]), (["s", "t"], [8, 0])]})
    credit = gigpo(equal)
    assert credit.step_advantage_N.any()
    assert name not in credit.metrics
