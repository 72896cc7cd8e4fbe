"""Counters and percentiles."""

from __future__ import annotations

import pytest

from megatron_agent.errors import EnvError
from megatron_agent.rollout.pool_stats import PoolStats, percentile

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, 0.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0], 51, 2.0),
        ([float(n) for n in range(1, 101)], 95, 95.0),
        ([float(n) for n in range(1, 101)], 100, 100.0),
        ([2.0, 1.0], 0, 1.0),
    ],
)
def test_a_percentile_is_one_of_the_values(values: list[float], percent: float, expected: float):
    assert percentile(values, percent) == expected


def test_failed_calls_are_counted_without_a_latency():
    stats = PoolStats()
    with stats.timed("step") as timing:
        timing.env_s = 0.25
    with pytest.raises(EnvError), stats.timed("step"):
        raise EnvError("it died")
    numbers = stats.as_dict()
    assert (numbers["num_step"], numbers["step_s/p50"], numbers["step_s/p99"]) == (2, 0.25, 0.25)
