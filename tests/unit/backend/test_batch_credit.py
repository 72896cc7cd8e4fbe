"""From rows to one advantage each, and every reason not to train on a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron_agent.credit import CreditConfig, CreditResult, CreditRows, registry
from megatron_agent.errors import CreditError, FailureRateError

pytestmark = pytest.mark.unit


def two_groups(batch: Any) -> Any:
    """A win and a loss of different length in each of two groups."""
    batch.episode("a", 0, rewards=(0.0, 0.0, 1.0), anchors=("start", "door", "hall"))
    batch.episode("a", 1, rewards=(0.0, 0.0), anchors=("start", "door"))
    batch.episode("b_with_underscore", 0, rewards=(0.0,))
    batch.episode("b_with_underscore", 1, rewards=(1.0,))
    return batch


def test_the_better_episode_of_a_group_gets_the_higher_credit(batch, make_settings):
    advantage_N, _ = two_groups(batch).credit(make_settings())
    won, lost = advantage_N[:3], advantage_N[3:5]
    assert won.min() > 0 > lost.max()
    # Episode 1 +- 0.5 on every row; the step part differs where both have visited one anchor.
    gamma, shared = 0.95, 2
    step_part = np.array([gamma**2, gamma, 0.0]) / shared
    np.testing.assert_allclose(won, 0.5 + step_part, atol=1e-9)
    np.testing.assert_allclose(lost, -0.5 - step_part[:2], atol=1e-9)


def test_padding_rows_get_zero_and_enter_no_statistic(batch, make_settings):
    alone, metrics_alone = two_groups(batch).credit(make_settings())
    # verl fills up with copies of real rows, or with rows that carry nothing of ours.
    batch.padding(batch.keys[0], {**batch.rows[0], "episode_return": 100.0, "failed": True})
    batch.padding("padding", {})
    padded, metrics = batch.credit(make_settings())
    np.testing.assert_array_equal(padded[:-2], alone)
    assert padded[-2:].tolist() == [0.0, 0.0]
    assert metrics.pop("train/padding_rows") == 2
    assert metrics_alone.pop("train/padding_rows") == 0
    assert metrics == metrics_alone


@pytest.mark.parametrize("method", ["gigpo", "grpo"])
def test_credit_follows_a_row_wherever_it_stands(batch, make_settings, method):
    two_groups(batch).padding("x_0_0", {})
    in_order, metrics = batch.credit(make_settings(), method)
    order = [7, 2, 5, 0, 6, 4, 1, 3]
    shuffled, shuffled_metrics = batch.reordered(order).credit(make_settings(), method)
    np.testing.assert_allclose(shuffled, in_order[order], atol=1e-12)
    assert shuffled_metrics == pytest.approx(metrics)


def test_metrics_are_means_over_episodes_not_over_rows(batch, make_settings):
    batch.episode("a", 0, rewards=(0.0,) * 8 + (1.0,))
    batch.episode("a", 1, rewards=(0.0,), action_valid=False)
    _, metrics = batch.credit(make_settings())
    assert metrics["episode/return/mean"] == 0.5
    assert metrics["episode/success/mean"] == 0.5
    assert metrics["episode/length/mean"] == 5.0
    assert metrics["episode/length/max"] == 9.0
    assert metrics["episode/failed/mean"] == 0.0
    assert metrics["episode/count"] == 2
    assert metrics["train/rows"] == 10
    # Validity is a property of steps, so this one counts rows.
    assert metrics["step/action_valid/mean"] == 0.9


def test_a_missing_session_is_an_error_that_names_group_and_sessions(batch, make_settings):
    batch.episode("a", 0, rewards=(1.0,)).episode("a", 2, rewards=(0.0,))
    with pytest.raises(
        CreditError, match=r"Group a has 2 of 4 sessions; missing: \[1, 3\]\. .* log"
    ):
        batch.credit(make_settings(group_size=4))


def test_padding_does_not_stand_in_for_a_missing_session(batch, make_settings):
    batch.episode("a", 0, rewards=(1.0,)).padding("a_1_0", batch.rows[0])
    with pytest.raises(CreditError, match=r"Group a has 1 of 2 sessions; missing: \[1\]"):
        batch.credit(make_settings())


def test_a_batch_of_padding_alone_is_an_error(batch, make_settings):
    with pytest.raises(CreditError, match=r"no episode, only 1 padding rows\. verl logs why"):
        batch.padding("a_0_0", {}).credit(make_settings())


def test_a_fatal_row_ends_the_run_with_its_reason_whatever_the_rate(batch, make_settings):
    batch.episode("a", 0, rewards=(1.0,))
    batch.episode("a", 1, rewards=(0.0,), fatal="group_start: seeds 7 and 8 differ")
    with pytest.raises(
        FailureRateError,
        match="Session 1 of group a could not be played: group_start: seeds 7 and 8 differ",
    ):
        batch.credit(make_settings(max_failure_rate=1.0))


def test_the_reason_of_a_fatal_row_comes_before_the_sessions_it_took_along(batch, make_settings):
    batch.episode("a", 1, rewards=(0.0,), fatal="KeyError: 'goal'")
    with pytest.raises(FailureRateError, match="KeyError: 'goal'"):
        batch.credit(make_settings(group_size=4))


def test_failures_up_to_the_rate_are_data_and_counted(batch, make_settings):
    batch.episode("a", 0, rewards=(0.0,), failure="env_error: crashed")
    batch.episode("a", 1, rewards=(1.0,))
    advantage_N, metrics = batch.credit(make_settings(max_failure_rate=0.5))
    assert metrics["episode/failed/mean"] == 0.5
    assert advantage_N[0] < 0 < advantage_N[1]


def test_failures_above_the_rate_end_the_run_and_are_counted_by_kind(batch, make_settings):
    batch.episode("a", 0, rewards=(0.0, 0.0), failure="env_error: crashed in step: 1")
    batch.episode("a", 1, rewards=(0.0,), failure="prompt_too_long: 600 tokens")
    batch.episode("b", 0, rewards=(0.0,), failure="env_error: timed out")
    batch.episode("b", 1, rewards=(1.0,))
    with pytest.raises(FailureRateError) as raised:
        batch.credit(make_settings(max_failure_rate=0.5))
    assert str(raised.value) == (
        "3 of 4 episodes failed (env_error 2, prompt_too_long 1), more than "
        "env.max_failure_rate=0.5 allows. First failure: env_error: crashed in step: 1"
    )


def test_the_failure_rate_counts_episodes_not_rows(batch, make_settings):
    batch.episode("a", 0, rewards=(0.0,) * 9, failure="env_error: crashed late")
    batch.episode("a", 1, rewards=(1.0,))
    batch.credit(make_settings(max_failure_rate=0.5))


def test_grpo_gives_all_steps_of_an_episode_the_same_credit(batch, make_settings):
    advantage_N, _ = two_groups(batch).credit(make_settings(norm_by_std=False), "grpo")
    np.testing.assert_allclose(advantage_N, [0.5, 0.5, 0.5, -0.5, -0.5, -0.5, 0.5], atol=1e-9)


def test_grpo_reads_verls_switch_for_the_standard_deviation(batch, make_settings):
    two_groups(batch)
    centred, _ = batch.credit(make_settings(norm_by_std=False), "grpo")
    scaled, _ = batch.credit(make_settings(norm_by_std=True), "grpo")
    assert np.all(np.abs(scaled) > np.abs(centred))


def test_a_group_of_equal_returns_gets_exactly_zero(batch, make_settings):
    batch.episode("a", 0, rewards=(0.0,)).episode("a", 1, rewards=(0.0, 0.0))
    advantage_N, _ = batch.credit(make_settings(), "grpo")
    assert advantage_N.tolist() == [0.0, 0.0, 0.0]


def test_a_gap_in_the_steps_of_a_session_is_an_error(batch, make_settings):
    batch.episode("a", 0, rewards=(0.0, 0.0, 1.0)).episode("a", 1, rewards=(0.0,))
    kept = batch.reordered([0, 2, 3])
    with pytest.raises(CreditError, match="a"):
        kept.credit(make_settings())


def test_rows_weigh_as_asked(batch, make_settings):
    batch.episode("a", 0, rewards=(0.0, 1.0)).episode("a", 1, rewards=(0.0,))
    batch.padding("a_0_1", batch.rows[1])
    settings = make_settings(norm_by_std=False, row_weights="trajectory")
    credit = batch.whole_credit(settings, "grpo", response_length_N=[2, 4, 2, 9])
    # 8 tokens and 2 episodes: 4 each, so 4/6 a token of the first and 4/2 of the second.
    np.testing.assert_allclose(credit.advantage_N, [0.5 * 4 / 6, 0.5 * 4 / 6, -0.5 * 4 / 2, 0])


def test_a_critic_learns_the_target_of_gae_and_advantages_are_measured_against_it(
    batch, make_settings
):
    batch.episode("a", 0, rewards=(0.0, 1.0)).episode("a", 1, rewards=(0.0,))
    batch.padding("a_1_0", batch.rows[2])
    credit = batch.whole_credit(make_settings(whiten=False), "gae", value_N=[0.5, 0.8, 0.4, 9.0])
    # lambda 1: the return, 0.95 and 1 and 0, less the value; padding rows get nothing.
    np.testing.assert_allclose(credit.return_N, [0.95, 1.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(credit.advantage_N, [0.45, 0.2, -0.4, 0.0], atol=1e-12)


def test_a_session_without_steps_has_no_state_to_value(batch, make_settings):
    batch.episode("a", 0, rewards=(1.0,)).episode("a", 1, rewards=(0.0,))
    batch.rows[1] |= {"episode_length": 0, "failed": True}
    settings = make_settings(whiten=False)
    credit = batch.whole_credit(settings, "gae", value_N=[0.25, 50.0])
    assert (credit.advantage_N.tolist(), credit.return_N.tolist()) == ([0.75, 0.0], [1.0, 0.0])


@pytest.fixture
def methods_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("_methods", "_facts"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))


def test_a_method_gets_the_columns_that_it_asks_for(batch, make_settings, methods_of_our_own):
    @registry.register_credit("curious", needs=("log_prob", "entropy", "anchor_text"))
    def curious(rows: CreditRows, config: CreditConfig) -> CreditResult:
        seen.append([rows.log_prob_N.tolist(), rows.entropy_N.tolist(), list(rows.anchor_text_N)])
        return registry.credit_method("grpo")(rows, config)

    seen: list[Any] = []
    batch.episode("a", 0, rewards=(1.0,)).episode("a", 1, rewards=(0.0,))
    batch.padding("a_1_0", batch.rows[1])
    with pytest.raises(
        CreditError, match=r"text for credit method 'curious', got none at row a_0_0"
    ):
        batch.whole_credit(make_settings(), "curious")
    for row in batch.rows:
        row |= {"anchor_text": "hall"}
    with pytest.raises(CreditError, match="'curious' needs log_prob_N"):
        batch.whole_credit(make_settings(), "curious")
    batch.whole_credit(
        make_settings(),
        "curious",
        log_prob_N=np.array([-1.0, -2.0, -9.0]),
        entropy_N=np.array([0.5, 0.25, 9.0]),
    )
    assert seen == [[[-1.0, -2.0], [0.5, 0.25], ["hall", "hall"]]]


@pytest.mark.parametrize("method", ["gigpo", "hgpo", "grpo", "rloo", "step_reinforce"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(data=st.data(), num_ranks=st.integers(1, 4), num_padding=st.integers(0, 6))
def test_neither_padding_nor_the_split_over_ranks_changes_a_rows_credit(
    make_settings, make_batch, method, data, num_ranks, num_padding
):
    """verl fills a batch up with copies of rows, and deals rows to ranks in any order."""
    whole = two_groups(make_batch())
    advantage_N, _ = whole.credit(make_settings(), method)
    expected = dict(zip(whole.keys, advantage_N.tolist(), strict=True))
    filled = two_groups(make_batch())
    for row in data.draw(st.lists(st.integers(0, 6), min_size=num_padding, max_size=num_padding)):
        filled.padding(filled.keys[row], filled.rows[row])
    order = data.draw(st.permutations(range(len(filled.keys))))
    dealt = [row for rank in range(num_ranks) for row in order[rank::num_ranks]]
    mixed = filled.reordered(dealt)
    advantage_N, metrics = mixed.credit(make_settings(), method)
    assert metrics["train/padding_rows"] == num_padding
    for key, is_padding, advantage in zip(
        mixed.keys, mixed.is_padding, advantage_N.tolist(), strict=True
    ):
        assert advantage == (0.0 if is_padding else expected[key])


def test_without_a_critic_gae_says_what_it_lacks(batch, make_settings):
    with pytest.raises(CreditError, match="value_N"):
        two_groups(batch).credit(make_settings(), "gae")


def test_similarity_compares_the_texts_of_anchors(batch, make_settings):
    batch.episode("a", 0, rewards=(1.0,)).episode("a", 1, rewards=(0.0,))
    for row, text in zip(
        batch.rows, ("a kitchen with one red cup", "a kitchen with one red cap"), strict=True
    ):
        row |= {"anchor": text, "anchor_text": text}
    apart, _ = batch.credit(make_settings())
    together, _ = batch.credit(make_settings(enable_similarity=True))
    np.testing.assert_allclose(apart, [0.5, -0.5])
    np.testing.assert_allclose(together, [1.0, -1.0])


def test_similarity_needs_anchors_that_are_text(batch, make_settings):
    batch.episode("a", 0, rewards=(1.0,)).episode("a", 1, rewards=(0.0,))
    with pytest.raises(CreditError, match=r"must be text for .*enable_similarity.* row a_0_0"):
        batch.credit(make_settings(enable_similarity=True))


def test_success_counts_every_episode_played_and_not_only_those_trained_on(batch, make_settings):
    batch.episode("kept", 0, rewards=(1.0,)).episode("kept", 1, rewards=(0.0,))
    alone = batch.whole_credit(make_settings())
    solved = type(batch)()
    solved.episode("solved", 0, rewards=(0.0, 1.0)).episode("solved", 1, rewards=(1.0,))
    removed = {
        "solved": [row | {"key": key} for key, row in zip(solved.keys, solved.rows, strict=True)]
    }
    credit = batch.whole_credit(make_settings(), removed=removed)
    assert credit.metrics["episode/success/mean"] == 0.75
    assert credit.metrics["episode/count"] == 4
    assert credit.metrics["train/groups_kept/share"] == 0.5
    assert credit.metrics["train/rows"] == 2
    # A session has one entry, however many rows; padding is no session.
    assert sorted(credit.sessions) == [("kept", 0), ("kept", 1), ("solved", 0), ("solved", 1)]
    assert credit.advantage_N.tolist() == alone.advantage_N.tolist()


def test_a_fatal_row_of_a_group_that_was_replaced_ends_the_run_too(batch, make_settings):
    batch.episode("kept", 0, rewards=(1.0,)).episode("kept", 1, rewards=(0.0,))
    lost = type(batch)().episode("lost", 0, rewards=(0.0,), fatal="KeyError: 'goal'")
    removed = {"lost": [lost.rows[0] | {"key": lost.keys[0]}]}
    with pytest.raises(FailureRateError, match=r"Session 0 of group lost .* KeyError: 'goal'"):
        batch.whole_credit(make_settings(), removed=removed)
