"""What must hold for any batch and every method: found by random batches, not by examples."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_agent.credit import (
    CreditConfig,
    CreditResult,
    CreditRows,
    HgpoOptions,
    check_options,
    compute_credit,
    credit_names,
    row_weights,
)
from megatron_agent.errors import ConfigError

pytestmark = pytest.mark.unit

MakeRows = Callable[..., CreditRows]
Session = tuple[Sequence[str], Sequence[float]]
Sessions = Mapping[str, Sequence[Session]]

rewards = st.sampled_from([0.0, 0.0, 1.0, 10.0, 9.9, -0.1, 0.3])
anchors = st.sampled_from(["s0", "s1", "s2", "s3"])


@st.composite
def one_session(draw: st.DrawFn) -> Session:
    num_steps = draw(st.integers(1, 6))
    return (
        draw(st.lists(anchors, min_size=num_steps, max_size=num_steps)),
        draw(st.lists(rewards, min_size=num_steps, max_size=num_steps)),
    )


batches = st.dictionaries(
    st.sampled_from(["a", "b_1", "b", "task_with_underscores"]),
    st.lists(one_session(), min_size=1, max_size=5),
    min_size=1,
)
configs = st.builds(
    CreditConfig,
    gamma=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    step_advantage_w=st.sampled_from([0.5, 1.0]),
    mode=st.sampled_from(["mean_norm", "mean_std_norm"]),
    episode_statistics=st.sampled_from(["trajectory", "row"]),
    lonely_episode=st.sampled_from(["zero", "raw_score"]),
    repeated_states=st.sampled_from(["every_visit", "first_visit"]),
    lam=st.sampled_from([0.0, 0.9, 1.0]),
    hgpo=st.builds(
        HgpoOptions,
        history_length=st.integers(0, 3),
        length_weight_alpha=st.sampled_from([0.0, 1.0]),
        base_group=st.booleans(),
    ),
    whiten_advantages=st.booleans(),
    normalize_by_length=st.booleans(),
    invalid_action_penalty_mode=st.sampled_from(["separate", "score", "step_return", "both"]),
    invalid_action_penalty_reach=st.sampled_from(["own_step", "earlier_steps"]),
)

COMPARE_INSIDE_GROUPS = ("gigpo", "grpo", "hgpo", "rloo")
COMPARE_WITH_THE_BATCH = (
    "gae",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "step_reinforce",
)
names = st.sampled_from(COMPARE_INSIDE_GROUPS + COMPARE_WITH_THE_BATCH)
group_methods = st.sampled_from(COMPARE_INSIDE_GROUPS)
seeds = st.integers(0, 2**16)

quick = settings(max_examples=60, deadline=None)


def test_every_method_is_tested_here() -> None:
    assert set(credit_names()) == {*COMPARE_INSIDE_GROUPS, *COMPARE_WITH_THE_BATCH}


def credit_of(name: str, rows: CreditRows, config: CreditConfig) -> CreditResult:
    """The credit; a penalty that the method has no place for goes where there is one."""
    try:
        check_options(name, config)
    except ConfigError:
        config = dataclasses.replace(config, invalid_action_penalty_mode="both")
    return compute_credit(name, rows, config)


def changed(rows: CreditRows, **columns: np.ndarray) -> CreditRows:
    other = copy.copy(rows)
    for name, column in columns.items():
        object.__setattr__(other, name, column)
    return other


def keys_of(sessions: Sessions) -> list[str]:
    return [
        f"{uid}_{session_id}_{step_idx}"
        for uid, group in sessions.items()
        for session_id, (anchors, _) in enumerate(group)
        for step_idx in range(len(anchors))
    ]


def some_of(keys: Sequence[str], seed: int) -> list[str]:
    return [key for key in keys if random.Random(f"{seed}{key}").random() < 0.3]


def by_key(rows: CreditRows, credit: CreditResult) -> dict[str, float]:
    keys = zip(rows.group_N, rows.session_N, rows.step_N, strict=True)
    names = (f"{uid}_{session}_{step}" for uid, session, step in keys)
    return dict(zip(names, credit.advantage_N.tolist(), strict=True))


@quick
@given(sessions=batches, config=configs, name=names, seed=seeds)
def test_row_order_changes_no_bit(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str, seed: int
) -> None:
    keys = keys_of(sessions)
    order = random.Random(seed).sample(range(len(keys)), len(keys))
    sorted_rows = make_rows(sessions, invalid=some_of(keys, seed))
    mixed_rows = make_rows(sessions, invalid=some_of(keys, seed), order=order)
    straight, mixed = (credit_of(name, r, config) for r in (sorted_rows, mixed_rows))
    assert by_key(sorted_rows, straight) == by_key(mixed_rows, mixed)
    assert straight.metrics == mixed.metrics
    for part in ("episode_advantage_N", "step_advantage_N", "return_N", "penalty_N"):
        np.testing.assert_array_equal(getattr(straight, part)[order], getattr(mixed, part))


@quick
@given(sessions=batches, config=configs, name=names, seed=seeds)
def test_names_of_groups_sessions_and_anchors_change_no_bit(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str, seed: int
) -> None:
    rows = make_rows(sessions, invalid=some_of(keys_of(sessions), seed))
    rng = random.Random(seed)

    def renamed(labels: Sequence[str]) -> np.ndarray:
        distinct = sorted(set(labels))
        new = dict(zip(distinct, rng.sample(range(100), len(distinct)), strict=True))
        return np.array([f"n{new[label]}" for label in labels], dtype=object)

    numbers = rng.sample(range(50), 5)
    other = changed(
        rows,
        group_N=renamed(rows.group_N),
        anchor_N=renamed(rows.anchor_N),
        session_N=np.array([numbers[s] for s in rows.session_N]),
    )
    np.testing.assert_array_equal(
        credit_of(name, rows, config).advantage_N, credit_of(name, other, config).advantage_N
    )


@quick
@given(sessions=batches, config=configs, name=group_methods, seed=seeds)
def test_a_group_is_credited_as_if_it_were_alone(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str, seed: int
) -> None:
    """So equal anchors of two tasks never meet, and any split into groups gives the same."""
    invalid = some_of(keys_of(sessions), seed)
    rows = make_rows(sessions, invalid=invalid)
    together = by_key(rows, credit_of(name, rows, config))
    apart: dict[str, float] = {}
    for uid, group in sessions.items():
        alone = make_rows({uid: group}, invalid=invalid)
        apart |= by_key(alone, credit_of(name, alone, config))
    assert together == apart


@quick
@given(sessions=batches, config=configs, name=names, seed=seeds)
def test_equal_anchors_of_two_tasks_do_not_bring_them_together(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str, seed: int
) -> None:
    """Whatever a method compares: naming the anchors apart per task changes no bit."""
    rows = make_rows(sessions, invalid=some_of(keys_of(sessions), seed))
    pairs = zip(rows.group_N, rows.anchor_N, strict=True)
    apart = np.array([f"{uid}/{anchor}" for uid, anchor in pairs], dtype=object)
    np.testing.assert_array_equal(
        credit_of(name, rows, config).advantage_N,
        credit_of(name, changed(rows, anchor_N=apart), config).advantage_N,
    )


def test_two_tasks_with_equal_anchors_never_share_a_group(make_rows: MakeRows) -> None:
    rows = make_rows({"won": [(["same"], [10.0])] * 2, "lost": [(["same"], [0.0])] * 2})
    credit = compute_credit("gigpo", rows, CreditConfig(gamma=0.95))
    assert not credit.advantage_N.any()
    assert credit.metrics["credit/step_groups"] == 2


def test_session_0_of_two_groups_are_two_sessions(make_rows: MakeRows) -> None:
    rows = make_rows({"a": [(["x", "y"], [0, 1])], "b": [(["x", "y"], [0, 4])]})
    credit = compute_credit("gigpo", rows, CreditConfig(gamma=0.5))
    assert credit.return_N.tolist() == [0.5, 1.0, 2.0, 4.0]


@quick
@given(sessions=batches, config=configs, name=names, shift=st.sampled_from([-5.0, 0.7, 100.0]))
def test_a_constant_added_to_all_returns_of_a_group_changes_nothing(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str, shift: float
) -> None:
    """Episode level: only differences inside a group count. Without a group, inside the batch."""
    config = dataclasses.replace(config, lonely_episode="zero", normalize_by_length=False)
    rows = make_rows(sessions)
    one_group = rows.group_N == rows.group_N[0]
    where = np.ones(rows.num_rows, dtype=bool) if name == "reinforce_plus_plus" else one_group
    shifted = changed(rows, episode_return_N=rows.episode_return_N + shift * where)
    np.testing.assert_allclose(
        credit_of(name, rows, config).advantage_N,
        credit_of(name, shifted, config).advantage_N,
        rtol=1e-9,
        atol=1e-9,
    )


@quick
@given(sessions=batches, config=configs, name=st.sampled_from(["gigpo", "hgpo"]))
def test_a_constant_added_to_all_step_returns_of_a_group_changes_nothing(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str
) -> None:
    """Step level: without a discount, 3 more at the end is 3 more for every step."""
    config = dataclasses.replace(config, gamma=1.0)
    rows = make_rows(sessions)
    is_last = np.append(rows.step_N[1:] == 0, True)
    one_group = rows.group_N == rows.group_N[0]
    shifted = changed(rows, step_reward_N=rows.step_reward_N + 3.0 * (is_last & one_group))
    np.testing.assert_allclose(
        credit_of(name, rows, config).step_advantage_N,
        credit_of(name, shifted, config).step_advantage_N,
        rtol=1e-9,
        atol=1e-9,
    )


@quick
@given(sessions=batches, config=configs, name=st.sampled_from(COMPARE_WITH_THE_BATCH))
def test_whitened_advantages_sum_to_zero_over_rows_and_have_deviation_1(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str
) -> None:
    rows = make_rows(sessions)
    plain = credit_of(name, rows, dataclasses.replace(config, whiten_advantages=False))
    credit = credit_of(name, rows, dataclasses.replace(config, whiten_advantages=True))
    if np.ptp(plain.advantage_N) < 1e-6:
        return  # a batch without spread: nothing to divide by
    assert np.std(credit.advantage_N, ddof=1) == pytest.approx(1, abs=1e-3)
    if name != "reinforce_plus_plus_baseline":  # it is centred per group, see below
        assert credit.advantage_N.sum() == pytest.approx(0, abs=1e-9)


@quick
@given(
    sessions=batches,
    config=configs,
    name=st.sampled_from(["gigpo", "grpo", "rloo", "reinforce_plus_plus_baseline"]),
)
def test_episode_parts_sum_to_zero_over_those_who_were_compared(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str
) -> None:
    config = dataclasses.replace(config, lonely_episode="zero")
    rows = make_rows(sessions)
    credit = credit_of(name, rows, config)
    counts_rows = config.episode_statistics == "row" and name != "rloo"
    for uid in sessions:
        counted = (rows.group_N == uid) & (counts_rows | (rows.step_N == 0))
        assert credit.episode_advantage_N[counted].sum() == pytest.approx(0, abs=1e-9)


@quick
@given(sessions=batches, config=configs)
def test_step_parts_sum_to_zero_over_those_who_were_compared(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig
) -> None:
    rows = make_rows(sessions)
    credit = credit_of("gigpo", rows, config)
    for uid in sessions:
        in_group = rows.group_N == uid
        for anchor in set(rows.anchor_N[in_group]):
            members = in_group & (rows.anchor_N == anchor)
            assert credit.step_advantage_N[members].sum() == pytest.approx(0, abs=1e-9)


@quick
@given(sessions=batches, config=configs)
def test_returns_follow_their_definition(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig
) -> None:
    expected = []
    for group in sessions.values():
        for _, rewards in group:
            for step_idx in range(len(rewards)):
                rest = rewards[step_idx:]
                expected.append(sum(r * config.gamma**k for k, r in enumerate(rest)))
    credit = credit_of("gigpo", make_rows(sessions), config)
    np.testing.assert_allclose(credit.return_N, expected, atol=1e-12)


@quick
@given(
    sessions=batches,
    config=configs,
    name=st.sampled_from(["grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]),
)
def test_all_rows_of_a_session_share_one_episode_credit(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str
) -> None:
    rows = make_rows(sessions)
    credit = credit_of(name, rows, config)
    sessions_seen: dict[tuple[str, int], float] = {}
    for row, key in enumerate(zip(rows.group_N, rows.session_N, strict=True)):
        assert credit.advantage_N[row] == sessions_seen.setdefault(key, credit.advantage_N[row])


@quick
@given(sessions=batches, config=configs, name=names, seed=seeds)
def test_a_separate_penalty_is_added_to_what_there_was(
    make_rows: MakeRows, sessions: Sessions, config: CreditConfig, name: str, seed: int
) -> None:
    config = dataclasses.replace(config, invalid_action_penalty_mode="separate")
    clean = compute_credit(name, make_rows(sessions), config)
    rows = make_rows(sessions, invalid=some_of(keys_of(sessions), seed))
    credit = compute_credit(name, rows, config)
    np.testing.assert_array_equal(credit.advantage_N, clean.advantage_N + credit.penalty_N)
    np.testing.assert_array_equal(credit.return_N, clean.return_N)


@quick
@given(sessions=batches, how=st.sampled_from(["token_mean", "trajectory", "step"]), seed=seeds)
def test_row_weights_keep_the_mean_over_tokens_and_follow_the_rows(
    make_rows: MakeRows, sessions: Sessions, how: str, seed: int
) -> None:
    rows = make_rows(sessions)
    rng = random.Random(seed)
    length_N = np.array([rng.randint(0, 9) for _ in range(rows.num_rows)])
    length_N[0] += 1
    weight_N = row_weights(rows, length_N, how)
    assert weight_N @ length_N == pytest.approx(length_N.sum())
    order = np.array(rng.sample(range(rows.num_rows), rows.num_rows))
    mixed_N = row_weights(rows.take(order), length_N[order], how)
    np.testing.assert_allclose(mixed_N, weight_N[order], rtol=1e-12)


@pytest.mark.parametrize("name", COMPARE_INSIDE_GROUPS + COMPARE_WITH_THE_BATCH)
def test_a_large_batch_takes_seconds(name: str) -> None:
    """Linear cost: the reference's returns alone are quadratic in the number of rows."""
    num_groups, num_sessions, num_steps = 50, 8, 50
    keys = [
        f"g{g}_{s}_{t}"
        for g in range(num_groups)
        for s in range(num_sessions)
        for t in range(num_steps)
    ]
    rng = np.random.default_rng(0)
    rows = CreditRows.from_keys(
        keys,
        anchor_N=[f"state {s}" for s in rng.integers(0, 200, len(keys))],
        step_reward_N=rng.normal(size=len(keys)),
        episode_return_N=np.repeat(rng.normal(size=num_groups * num_sessions), num_steps),
        action_valid_N=np.ones(len(keys), dtype=bool),
        value_N=rng.normal(size=len(keys)),
    )
    credit = compute_credit(name, rows.take(rng.permutation(len(keys))), CreditConfig(gamma=0.9))
    assert credit.advantage_N.shape == (20_000,)
