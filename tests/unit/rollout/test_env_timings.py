"""Times and failures of episodes, as rows carry them and as metrics show them."""

from __future__ import annotations

import pytest

from megatron_agent.rollout.env_timings import env_metrics

pytestmark = pytest.mark.unit


def a_row(env: str, reset_s: float, env_s: float | None, failure: str = "") -> dict[str, object]:
    return {
        "env": env,
        "reset_s": reset_s,
        "env_s": env_s,
        "num_restores": int(reset_s),
        "failure": failure,
    }


def test_latencies_are_told_by_environment():
    sessions = [a_row("taxi", 1.0, 0.1), a_row("taxi", 3.0, 0.2), a_row("gym:Taxi-v4", 5.0, 0.3)]
    rows = [*sessions, a_row("taxi", 3.0, 0.4)]
    metrics = env_metrics(sessions, rows)
    assert metrics == {
        "env/taxi/reset_s/p50": 1.0,
        "env/taxi/reset_s/p95": 3.0,
        "env/taxi/reset_s/p99": 3.0,
        "env/taxi/step_s/p50": 0.2,
        "env/taxi/step_s/p95": 0.4,
        "env/taxi/step_s/p99": 0.4,
        "env/gym_Taxi-v4/reset_s/p50": 5.0,
        "env/gym_Taxi-v4/reset_s/p95": 5.0,
        "env/gym_Taxi-v4/reset_s/p99": 5.0,
        "env/gym_Taxi-v4/step_s/p50": 0.3,
        "env/gym_Taxi-v4/step_s/p95": 0.3,
        "env/gym_Taxi-v4/step_s/p99": 0.3,
        "episode/restores/mean": 3.0,
    }


def test_failures_are_counted_by_kind_as_shares_of_the_episodes():
    sessions = [
        a_row("taxi", 0.0, None, "env_timeout: reset took more than 60 s"),
        a_row("taxi", 0.0, 0.1, "env_died: worker 0"),
        a_row("taxi", 0.0, 0.1, "env_died: worker 1"),
        {"failure": "group_start: two states"},  # could not be played
    ]
    metrics = env_metrics(sessions, sessions)
    assert metrics["episode/failed/env_timeout"] == 0.25
    assert metrics["episode/failed/env_died"] == 0.5
    assert metrics["episode/failed/group_start"] == 0.25
    assert metrics["env/taxi/step_s/p99"] == 0.1
