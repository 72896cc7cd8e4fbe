"""Groups, splits, legal actions, costs: what the checker says about environments that misbehave."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from envs.base import Observation, StepOutcome, TaskStart
from envs.check_report import run_check
from envs.checker import check_env
from envs.data import EnvDataError
from envs.frozenlake.env import FrozenLakeEnv
from envs.group_check import check_admissible, check_end, check_group, check_splits
from envs.measure import anchor_rate, measure, percentile
from envs.nonsense_check import check_nonsense
from envs.playback import EnvContractError, anchor_key, check_outcome
from envs.registry import EnvSpec, load_env

pytestmark = pytest.mark.unit

LAKE = load_env("frozenlake")


def spec_with(**changes: Any) -> EnvSpec:
    return dataclasses.replace(LAKE, **changes)


class OwnStart(FrozenLakeEnv):
    """Every object starts somewhere else."""

    num_made = 0

    def __init__(self) -> None:
        super().__init__()
        OwnStart.num_made += 1
        self._number = OwnStart.num_made

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        return super().reset(seed=seed + self._number, options=options)


class SharedPlace(FrozenLakeEnv):
    """What one does moves all."""

    shared: list[str] = []  # noqa: RUF012 - the mistake that is to be noticed

    def step(self, action: str) -> StepOutcome:
        SharedPlace.shared.append(action)
        outcome = super().step(action)
        text = f"{outcome.observation.text}\n{len(SharedPlace.shared)}"
        return dataclasses.replace(
            outcome, observation=dataclasses.replace(outcome.observation, text=text)
        )


class Liar(FrozenLakeEnv):
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        observation = super().reset(seed=seed, options=options)
        return dataclasses.replace(observation, admissible_actions=("left", "fly"))


class Tired(FrozenLakeEnv):
    """The second reset starts on another map."""

    num_resets = 0

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        self.num_resets += 1
        return super().reset(seed=seed + self.num_resets, options=options)


class Fragile(FrozenLakeEnv):
    def step(self, action: str) -> StepOutcome:
        if len(action) > 1000:
            raise MemoryError("too long")
        return super().step(action)


class Counter(FrozenLakeEnv):
    """Puts a number into each anchor, after the first."""

    count = 0

    def step(self, action: str) -> StepOutcome:
        outcome = super().step(action)
        if not outcome.action_valid:
            return outcome
        Counter.count += 1
        observation = dataclasses.replace(outcome.observation, anchor=Counter.count)
        return dataclasses.replace(outcome, observation=observation)


class Hoarder(FrozenLakeEnv):
    kept: list[bytes] = []  # noqa: RUF012 - the leak that is to be noticed

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        Hoarder.kept.append(bytes(bytearray(200_000)))
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize(
    ("check", "make", "message"),
    [
        (check_group, OwnStart, "members of a group must start equal; seed 0 gives 2 different"),
        (check_group, SharedPlace, "differs when other members of its group play"),
        (check_admissible, Liar, "'fly' is admissible at the start of seed 0, and step"),
        (check_end, Tired, "must begin anew, seed 0 starts differently"),
    ],
)
def test_a_broken_promise_is_named(check: Any, make: type[FrozenLakeEnv], message: str):
    with pytest.raises(EnvContractError, match=message):
        check(spec_with(make=make), 0, LAKE.default_options)


def test_terminated_and_truncated_exclude_each_other():
    env = FrozenLakeEnv()
    outcome = StepOutcome(
        observation=env.reset(seed=0),
        reward=0.0,
        terminated=True,
        truncated=True,
        info={"success": False},
    )
    with pytest.raises(EnvContractError, match="must not be terminated and truncated at once"):
        check_outcome(LAKE, outcome)


def starts(train: Sequence[int], evaluation: Sequence[int], strict: bool = True) -> Any:
    def task_list(split: str, options: Mapping[str, Any]) -> list[TaskStart]:
        seeds = {"train": train, "eval": evaluation}.get(split)
        if seeds is None:
            if strict:
                raise ValueError(f"split must be train or eval, got {split!r}.")
            return []
        return [TaskStart(name=f"map{seed}", seed=seed) for seed in seeds]

    return task_list


@pytest.mark.parametrize(
    ("task_list", "message"),
    [
        (starts([1, 2], [2]), "train and eval must share no task, both have"),
        (starts([1, 1], [2]), "task names of split 'train' must be unique"),
        (starts([1], []), "the list of split 'eval' must not be empty"),
        (starts([1], [2], strict=False), "must refuse an unknown split"),
    ],
)
def test_task_lists_are_checked(task_list: Any, message: str):
    with pytest.raises(EnvContractError, match=message):
        check_splits(spec_with(task_list=task_list), LAKE.default_options)


def test_an_environment_with_a_task_list_is_tried_on_its_tasks():
    check_env(spec_with(task_list=starts(range(1, 9), [9])), seeds=(0, 1))


def test_where_actions_are_any_text_only_blank_text_is_nonsense():
    class Open(FrozenLakeEnv):
        def _observe(self) -> Observation:
            return dataclasses.replace(super()._observe(), admissible_actions=())

    spec = spec_with(make=Open)
    check_nonsense(spec, 0, LAKE.default_options)


def test_a_good_environment_gets_a_report_with_figures():
    report = run_check(LAKE, num_members=4, num_tasks=1, num_resets=60)
    assert report.is_fine
    assert len(report.passed) == 9
    assert report.measurements is not None
    assert report.measurements.num_resets == 60
    assert 0 < report.measurements.step_s_p50 <= report.measurements.step_s_p99
    assert report.measurements.instance_bytes > 1000
    lines = list(report.lines())
    assert "ok       4 members of a group start equal and stay independent" in lines
    assert lines[-1] == "frozenlake keeps the contract."
    assert report.to_dict()["measurements"]["anchor_rate"] > 0.2


def test_an_exception_of_the_environment_is_a_problem_with_its_name():
    report = run_check(spec_with(make=Fragile), num_members=2, num_tasks=1, num_resets=4)
    assert "nonsense is refused without an error: MemoryError: too long" in report.problems
    assert list(report.lines())[-1] == "frozenlake does not keep the contract."
    assert report.measurements is None


def test_anchors_that_never_repeat_are_warned_of():
    spec = spec_with(make=Counter)
    measured = measure(spec, 0, LAKE.default_options, num_rollouts=2, num_resets=2)
    assert measured.anchor_rate == 0.0


def test_a_leak_is_measured():
    measured = measure(spec_with(make=Hoarder), 0, LAKE.default_options, num_rollouts=2)
    Hoarder.kept.clear()
    assert measured.leak_bytes_per_reset > 100_000


def test_missing_data_end_the_check(monkeypatch: pytest.MonkeyPatch):
    def no_data(options: Mapping[str, Any]) -> None:
        raise EnvDataError("get them with: make data")

    report = run_check(spec_with(check_data=no_data))
    assert report.problems == ["get them with: make data"]


def test_slow_resets_end_the_search_for_a_leak():
    measured = measure(LAKE, 0, LAKE.default_options, num_rollouts=2, max_leak_s=0.0)
    assert measured.num_resets == 1
    assert measured.leak_bytes_per_reset == 0.0


def test_rates_and_percentiles():
    assert anchor_rate([]) == 0.0
    assert anchor_rate([["a", "b"], ["c"]]) == 0.0
    assert percentile([], 99) == 0.0
    assert percentile([1.0, 2.0, 3.0], 99) == 3.0


def test_nested_anchors_compare_by_value():
    import numpy as np

    one = {"grid": np.eye(2), "at": (np.zeros(1), [1])}
    other = {"at": (np.zeros(1), [1]), "grid": np.eye(2)}
    assert anchor_key(one) == anchor_key(other)
    assert anchor_key(one) != anchor_key({**one, "grid": np.ones((2, 2))})
