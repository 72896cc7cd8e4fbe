"""When failed episodes stop a run."""

from __future__ import annotations

import pytest

from megatron_agent.errors import ConfigError, FailureRateError
from megatron_agent.rollout.failures import FailureMonitor
from megatron_agent.types import Episode

pytestmark = pytest.mark.unit


def episode(failure: str) -> Episode:
    return Episode(
        uid="g",
        session_id=0,
        env="frozenlake",
        task_id="t",
        seed=0,
        split="train",
        turns_T=(),
        success=False,
        failure=failure,
    )


def test_failures_below_the_rate_are_counted_by_kind():
    monitor = FailureMonitor(max_failure_rate=0.5, min_episodes=1)
    for failure in ("", "", "env_error: a", "env_error: b: c", "", "prompt_too_long: d"):
        monitor.record(episode(failure))
    assert monitor.num_failed == 3
    assert monitor.metrics() == {
        "episode/failure_rate": 0.5,
        "episode/failures/env_error": 2.0,
        "episode/failures/prompt_too_long": 1.0,
    }


def test_past_the_rate_the_error_says_how_many_which_and_why():
    monitor = FailureMonitor(max_failure_rate=0.5, min_episodes=4)
    for failure in ("", "prompt_too_long: 9", "env_error: it died"):
        monitor.record_failure(failure)
    with pytest.raises(
        FailureRateError,
        match=r"3 of 4 episodes .* rate of 0\.75; env\.max_failure_rate allows 0\.5\. By kind: "
        r"env_error 2, prompt_too_long 1\. The last: 'env_error: it hung'\.",
    ):
        monitor.record_failure("env_error: it hung")


def test_there_is_no_verdict_on_the_first_episodes():
    monitor = FailureMonitor(max_failure_rate=0.0, min_episodes=3)
    monitor.record_failure("env_error: a")
    monitor.record_failure("")
    with pytest.raises(FailureRateError, match="1 of 3"):
        monitor.record_failure("")


def test_an_iteration_starts_from_nothing():
    monitor = FailureMonitor(max_failure_rate=0.0, min_episodes=2)
    monitor.record_failure("env_error: a")
    monitor.start_iteration()
    monitor.record_failure("")
    monitor.record_failure("")
    assert monitor.metrics() == {"episode/failure_rate": 0.0}


def test_no_episodes_are_no_failures():
    assert FailureMonitor(0.0).metrics() == {"episode/failure_rate": 0.0}


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_outside_zero_to_one_is_refused(rate: float):
    with pytest.raises(ConfigError, match=r"env\.max_failure_rate must be in \[0, 1\]"):
        FailureMonitor(rate)


def test_a_verdict_needs_an_episode():
    with pytest.raises(ConfigError, match="min_episodes must be >= 1, got 0"):
        FailureMonitor(0.1, min_episodes=0)
