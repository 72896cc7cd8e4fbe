"""When a warm start stops learning, and when it stops doubting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from megatron_agent.policy import warm_start as module
from megatron_agent.policy.evaluate import Evaluation, wilson_interval
from megatron_agent.policy.warm_start import WarmStartConfig, WarmStartResult, warm_start
from megatron_agent.tasks import EnvTask

pytestmark = pytest.mark.unit

CONFIG = WarmStartConfig(
    measure_every=1, measure_doubt_every=1, num_measure_episodes=1, max_doubt_updates=4
)


class Model:
    """Nothing is learned here: what it would achieve is said by the test."""

    def eval(self) -> None:
        pass


class Imitator:
    def __init__(self, *_: Any) -> None:
        self.num_updates = 0

    def update(self, learning_rate: float, *, label_noise: float) -> None:
        pass


def evaluation(success_rate: float) -> Evaluation:
    low, high = wilson_interval(round(200 * success_rate), 200)
    return Evaluation(
        num_episodes=200,
        num_successes=round(200 * success_rate),
        success_rate=success_rate,
        interval_low=low,
        interval_high=high,
        mean_steps=6.0,
        valid_action_rate=1.0,
    )


def run(
    monkeypatch: pytest.MonkeyPatch, *, sampled: Sequence[float], greedy: Sequence[float]
) -> WarmStartResult:
    """Warm-start with these results, in the order in which they are asked for."""
    results = {1.0: iter(sampled), module.NEARLY_GREEDY: iter(greedy)}
    monkeypatch.setattr(module, "Imitator", Imitator)
    monkeypatch.setattr(
        module,
        "evaluate_policy",
        lambda *_, temperature, **__: evaluation(next(results[temperature])),
    )
    tasks = [EnvTask(env="frozenlake", task_id=f"{n}", seed=n, split="train") for n in range(9)]
    from envs.registry import load_env

    return warm_start(Model(), None, load_env("frozenlake"), tasks, CONFIG, seed=0)  # type: ignore[arg-type]


def test_what_is_forgotten_is_not_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    # Learned at 0.9; forgotten at 0.39, also without sampling; doubts at 0.41.
    made = run(monkeypatch, sampled=[0.5, 0.9, 0.39, 0.41], greedy=[0.38, 0.86])
    assert (made.num_updates, made.num_doubt_updates) == (2, 2)
    assert (made.skill.success_rate, made.evaluation.success_rate) == (0.9, 0.41)
    assert made.greedy.success_rate == 0.86


def test_doubting_ends_at_its_last_update(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run(monkeypatch, sampled=[0.9, 0.8, 0.7, 0.6, 0.5], greedy=[0.9])
    assert (made.num_doubt_updates, made.evaluation.success_rate) == (4, 0.5)
    assert made.greedy.success_rate == 0.9


def test_a_policy_that_never_gets_better_than_the_target_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = run(monkeypatch, sampled=[0.3] * 300, greedy=[0.5])
    assert made.num_doubt_updates == 0
