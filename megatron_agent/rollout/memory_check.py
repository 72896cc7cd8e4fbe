"""The contract of a memory module as a program.

Use it in a test of your own::

def test_my_memory_keeps_the_contract():
    check_memory(MyMemory)
"""

from __future__ import annotations

from collections.abc import Callable

from envs.base import PastStep
from megatron_agent.rollout.memory import Memory, memory_notes

_QUERIES = ("", "room 3 with a lamp", "\x00\ud800 \U0001f9ca", "x" * 100_000)
_MOST_NOTES_CHARS = 20_000


class MemoryContractError(AssertionError):
    """A memory module broke a promise; the message says which and how."""


def check_memory(make: Callable[[int], Memory]) -> None:
    """Check one memory module; takes milliseconds.

    Args:
        make: makes a memory for a ``history_length``: its class, as a rule.

    Raises:
        MemoryContractError: the first broken promise.
    """
    for history_length in (0, 1, 3):
        _check_episode(make, history_length)
    _check_independence(make)


def _check_episode(make: Callable[[int], Memory], history_length: int) -> None:
    from megatron_agent.task_rows import EnvTask

    task = EnvTask(env="frozenlake", task_id="check", seed=0, split="train")
    memory = make(history_length)
    memory.reset(task)
    _require(memory.fetch() == [], "fetch() before any store() must be an empty list.")
    first_notes = memory_notes(memory)
    stored: list[PastStep] = []
    for step_idx in range(40):
        stored.append(_step(step_idx))
        memory.store(stored[-1])
        for query in _QUERIES if step_idx % 13 == 0 else _QUERIES[1:2]:
            fetched = memory.fetch(query)
            _check_fetched(fetched, stored, history_length)
            _require(memory.fetch(query) == fetched, "fetch() twice in a row must give the same.")
        _require(
            len(memory_notes(memory)) <= _MOST_NOTES_CHARS,
            f"notes() must stay below {_MOST_NOTES_CHARS} characters: prompts must not grow with "
            f"the episode.",
        )
    before = list(memory.fetch())
    kept = memory.fetch()
    memory.store(_step(len(stored)))
    _require(kept == before, "what was fetched must not change by a later store().")
    memory.reset(task)
    _require(memory.fetch() == [], "reset() must forget every step.")
    _require(memory_notes(memory) == first_notes, "reset() must forget the notes.")


def _check_fetched(fetched: object, stored: list[PastStep], history_length: int) -> None:
    if not isinstance(fetched, list):
        raise MemoryContractError(f"fetch() must give a list, got {type(fetched).__name__}.")
    _require(
        all(isinstance(step, PastStep) for step in fetched),
        "fetch() must give PastStep records.",
    )
    _require(
        len(fetched) <= history_length,
        f"fetch() must give at most history_length={history_length} steps, got {len(fetched)}.",
    )
    numbers = [step.step_idx for step in fetched]
    _require(
        numbers == sorted(set(numbers)), f"fetch() must give steps oldest first, got {numbers}."
    )
    for step in fetched:
        _require(
            step in stored,
            f"fetch() must give steps as they were stored, and step {step.step_idx} was not.",
        )


def _check_independence(make: Callable[[int], Memory]) -> None:
    one, other = make(2), make(2)
    one.store(_step(0))
    _require(other.fetch() == [], "two memories must not share their steps.")


def _step(step_idx: int) -> PastStep:
    """A step of a walk through five rooms; now and then a reward, a refusal, a note."""
    return PastStep(
        step_idx=step_idx,
        observation=f"room {step_idx % 5} with a lamp",
        action="" if step_idx % 7 == 0 else "go on",
        reward=float(step_idx % 11 == 0),
        response=f"<memory>{'note ' * step_idx * 50}</memory><action>go on</action>",
        action_valid=step_idx % 7 != 0,
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise MemoryContractError(message)
