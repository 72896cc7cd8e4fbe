"""Memory modules and how they are found."""

from __future__ import annotations

from typing import Any

import pytest

from envs.base import PastStep
from megatron_agent.errors import ConfigError
from megatron_agent.rollout.memory import WindowMemory, load_memory
from megatron_agent.tasks import EnvTask

pytestmark = pytest.mark.unit


def step(step_idx: int) -> PastStep:
    return PastStep(step_idx=step_idx, observation=f"o{step_idx}", action=f"a{step_idx}")


@pytest.mark.parametrize(
    ("history_length", "kept"), [(0, []), (1, [3]), (2, [2, 3]), (9, [1, 2, 3])]
)
def test_a_window_keeps_the_last_steps_oldest_first(history_length: int, kept: list[int]):
    memory = WindowMemory(history_length)
    for step_idx in (1, 2, 3):
        memory.store(step(step_idx))
    assert [past.step_idx for past in memory.fetch()] == kept


def test_a_reset_forgets(task: EnvTask):
    memory = load_memory("window", 2)
    memory.store(step(0))
    memory.reset(task)
    assert memory.fetch() == []


def test_what_was_fetched_does_not_change_later():
    memory = WindowMemory(2)
    memory.store(step(0))
    fetched = memory.fetch()
    memory.store(step(1))
    assert fetched == [step(0)]


def test_a_class_of_ones_own_is_found_by_its_path():
    path = "megatron_agent.rollout.memory:WindowMemory"
    assert isinstance(load_memory(path, 3), WindowMemory)


@pytest.mark.parametrize("history_length", [-1, 1.5, None])
def test_a_bad_length_is_named(history_length: Any):
    with pytest.raises(ConfigError, match=r"env\.history_length must be an integer >= 0, got "):
        load_memory("window", history_length)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("windwo", r"env\.memory must be one of window or package\.module:Class.*Did you mean 'wi"),
        ("no_such_module:Memory", r"env\.memory must be importable \(No module named"),
        ("envs.base:Memory", r"env\.memory must be importable \(module 'envs\.base' has no attr"),
        (":Memory", r"env\.memory must be importable \(Empty module name\)"),
        ("envs.tags:FALLBACK_ACTION", r"env\.memory must name a class"),
        ("envs.tags:format_response", r"env\.memory must have the methods reset.*no reset\(\)"),
    ],
)
def test_a_bad_name_says_what_is_wrong(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_memory(name, 2)
