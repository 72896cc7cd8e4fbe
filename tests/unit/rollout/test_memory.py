"""Memory modules and how they are found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from envs.base import PastStep
from megatron_agent.errors import ConfigError
from megatron_agent.rollout import memory_modules
from megatron_agent.rollout.memory import WindowMemory, load_memory
from megatron_agent.rollout.memory_check import MemoryContractError, check_memory
from megatron_agent.rollout.memory_modules import MAX_SLOT_CHARS, SummarySlotMemory
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


@pytest.mark.parametrize("name", ["window", "key_event", "search"])
@pytest.mark.parametrize("history_length", [-1, 1.5, None])
def test_a_bad_length_is_named(name: str, history_length: Any):
    with pytest.raises(ConfigError, match=r"env\.history_length must be an integer >= 0, got "):
        load_memory(name, history_length)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "windwo",
            r"env\.memory must be one of key_event, .*, window or package.*Did you mean 'wi",
        ),
        ("no_such_module:Memory", r"env\.memory must be importable \(No module named"),
        ("envs.base:Memory", r"env\.memory must be importable \(module 'envs\.base' has no attr"),
        (":Memory", r"env\.memory must be importable \(Empty module name\)"),
        ("envs.tags:FALLBACK_ACTION", r"env\.memory must name a class"),
        ("os:getcwd", r"env\.memory must name a class that takes history_length \(.*getcwd"),
        ("envs.tags:format_response", r"env\.memory must have the methods reset.*no reset\(\)"),
    ],
)
def test_a_bad_name_says_what_is_wrong(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_memory(name, 2)


@pytest.mark.parametrize("source", ["def (", "1 / 0"])
def test_a_module_that_raises_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
):
    (tmp_path / "broken_memory.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"env\.memory must be importable \("):
        load_memory("broken_memory:Memory", 2)


@pytest.mark.parametrize("name", ["window", "key_event", "summary_slot", "search"])
def test_every_built_in_memory_keeps_the_contract(name: str):
    check_memory(lambda history_length: load_memory(name, history_length))


class Hoarder(WindowMemory):
    def fetch(self, query: str = "") -> list[PastStep]:
        return [step(0), step(1), step(2), step(3)] if self._steps else []


class Forgetless(WindowMemory):
    def reset(self, task: EnvTask) -> None:
        pass


class Backwards(WindowMemory):
    def fetch(self, query: str = "") -> list[PastStep]:
        return super().fetch(query)[::-1]


class Gossip(WindowMemory):
    told = ""

    def store(self, step: PastStep) -> None:
        super().store(step)
        Gossip.told += step.response

    def notes(self) -> str:
        return Gossip.told


class Inventor(WindowMemory):
    def fetch(self, query: str = "") -> list[PastStep]:
        return [step(99)] if self._steps else []


class Editor(WindowMemory):
    def store(self, step: PastStep) -> None:
        super().store(dataclasses.replace(step, observation=step.observation.upper()))


class Live(WindowMemory):
    """Hands out its own list."""

    def __init__(self, history_length: int) -> None:
        super().__init__(history_length)
        self._live: list[PastStep] = []

    def reset(self, task: EnvTask) -> None:
        self._live.clear()

    def store(self, step: PastStep) -> None:
        self._live.append(step)
        del self._live[: len(self._live) - self.history_length]

    def fetch(self, query: str = "") -> list[PastStep]:
        return self._live


class Shared(WindowMemory):
    steps: list[PastStep] = []  # noqa: RUF012 - the mistake that is to be noticed

    def reset(self, task: EnvTask) -> None:
        Shared.steps = []

    def store(self, step: PastStep) -> None:
        Shared.steps = [*Shared.steps, step]

    def fetch(self, query: str = "") -> list[PastStep]:
        return Shared.steps[len(Shared.steps) - self.history_length :]


class TupleGiver(WindowMemory):
    def fetch(self, query: str = "") -> Any:
        return tuple(super().fetch(query)) or []


class TextGiver(WindowMemory):
    def fetch(self, query: str = "") -> Any:
        return [past.observation for past in super().fetch(query)]


class Moody(WindowMemory):
    def fetch(self, query: str = "") -> list[PastStep]:
        fetched = super().fetch(query)
        self._steps.clear()
        return fetched


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Hoarder, "at most history_length=1 steps, got 4"),
        (Forgetless, r"reset\(\) must forget every step"),
        (Backwards, r"oldest first, got \[1, 0\]"),
        (Gossip, "must stay below 20000 characters"),
        (Inventor, "steps as they were stored, and step 99 was not"),
        (Editor, "steps as they were stored, and step 0 was not"),
        (Live, "must not change by a later store"),
        (Shared, "must not share their steps"),
        (TupleGiver, r"must give a list, got tuple"),
        (TextGiver, "must give PastStep records"),
        (Moody, r"fetch\(\) twice in a row must give the same"),
    ],
)
def test_a_memory_that_breaks_the_contract_is_noticed(make: Any, message: str):
    with pytest.raises(MemoryContractError, match=message):
        check_memory(make)


def test_key_events_are_rewards_then_refusals_then_what_was_new():
    memory = load_memory("key_event", 4)
    for step_idx, (observation, reward, valid) in enumerate(
        [
            ("hall", 0.0, True),
            ("hall", -1.0, True),
            ("hall", 0.0, True),
            ("hall", 0.0, False),
            ("hall with a golden door", 0.0, True),
            ("hall", 0.0, True),
        ]
    ):
        memory.store(
            PastStep(
                step_idx=step_idx,
                observation=observation,
                action="wait",
                reward=reward,
                action_valid=valid,
            )
        )
    assert [past.step_idx for past in memory.fetch()] == [1, 3, 4, 5]


def test_the_slot_keeps_what_the_agent_wrote_last_and_no_more_than_fits():
    memory = load_memory("summary_slot", 1)
    assert isinstance(memory, SummarySlotMemory)
    assert "Your notes: none yet" in memory.notes()
    memory.store(dataclasses.replace(step(0), response="<memory>a</memory><memory>b</memory>"))
    memory.store(dataclasses.replace(step(1), response="no note"))
    assert memory.notes().startswith("Your notes: b\n")
    memory.store(dataclasses.replace(step(2), response=f"<memory>{'x' * 9000}</memory>"))
    assert len(memory.notes()) < MAX_SLOT_CHARS + 200
    memory.store(dataclasses.replace(step(3), response="<memory> </memory>"))
    assert "none yet" in memory.notes()


def test_a_fetch_that_takes_no_query_is_named(monkeypatch: pytest.MonkeyPatch):
    class Old(WindowMemory):
        def fetch(self) -> list[PastStep]:  # type: ignore[override]
            return []

    monkeypatch.setattr(memory_modules, "Old", Old, raising=False)
    with pytest.raises(ConfigError, match=r"env\.memory must have a fetch\(query\) \(too many"):
        load_memory("megatron_agent.rollout.memory_modules:Old", 2)
