"""What an agent remembers of its episode: memory modules between the steps and the prompt.

A memory serves one episode at a time: ``reset``, then ``fetch`` before and ``store`` after each
step. Pick one by name (``window``; others in `megatron_agent.rollout.memory_modules`) or bring your
own as ``package.module:Class``; its constructor takes ``history_length``.
`megatron_agent.rollout.memory_check` tells whether it keeps the contract.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from envs.base import PastStep
from megatron_agent.errors import ConfigError

if TYPE_CHECKING:
    from megatron_agent.tasks import EnvTask


class Memory(Protocol):
    """The contract of a memory module.

    One may also have ``notes() -> str``: text to be shown as it is, beside or instead of steps.
    """

    def reset(self, task: EnvTask) -> None:
        """Forget everything: an episode of ``task`` starts."""

    def store(self, step: PastStep) -> None:
        """Take note of a step that was made."""

    def fetch(self, query: str = "") -> list[PastStep]:
        """What to show in the next prompt: steps as they were stored, oldest first.

        Args:
            query: the observation's text, for memories that look for what fits it.
        """


class WindowMemory:
    """The last ``history_length`` steps, as they were.

    Example:
        >>> memory = WindowMemory(history_length=1)
        >>> for step_idx in range(3):
        ...     memory.store(PastStep(step_idx=step_idx, observation="o", action="a"))
        >>> [step.step_idx for step in memory.fetch()]
        [2]
    """

    def __init__(self, history_length: int) -> None:
        self.history_length = checked_length(history_length)
        self._steps: deque[PastStep] = deque(maxlen=history_length)

    def reset(self, task: EnvTask) -> None:
        self._steps.clear()

    def store(self, step: PastStep) -> None:
        self._steps.append(step)

    def fetch(self, query: str = "") -> list[PastStep]:
        return list(self._steps)


def checked_length(history_length: int) -> int:
    """``history_length``, if it is one; raises ConfigError."""
    if not isinstance(history_length, int) or history_length < 0:
        raise ConfigError(
            "env.history_length",
            "must be an integer >= 0",
            history_length,
            "Use 2, or 0 for prompts without history.",
        )
    return history_length


_MODULES = "megatron_agent.rollout.memory_modules"
_BUILT_IN: Mapping[str, str] = {
    "key_event": f"{_MODULES}:KeyEventMemory",
    "search": f"{_MODULES}:SearchMemory",
    "summary_slot": f"{_MODULES}:SummarySlotMemory",
    "window": f"{__name__}:WindowMemory",
}
_METHODS = ("reset", "store", "fetch")


def memory_notes(memory: Memory) -> str:
    """What ``memory`` wants shown beside past steps: its ``notes()``, where it has that method."""
    notes = getattr(memory, "notes", None)
    return str(notes()) if callable(notes) else ""


def load_memory(name: str, history_length: int) -> Memory:
    """A fresh memory module.

    Args:
        name: a built-in name, or ``package.module:Class``.
        history_length: how many past steps a prompt may show.

    Raises:
        ConfigError: no such name, module or class, a class that is not a memory or raises, or a
            length that cannot work.

    Example:
        >>> load_memory("window", 2).fetch()
        []
    """
    factory = _factory(name)
    try:
        memory = factory(history_length)
    except ConfigError:
        raise
    except Exception as error:  # the class of a stranger may raise anything
        raise _bad_name(f"must name a class that takes history_length ({error})", name) from error
    missing = [method for method in _METHODS if not callable(getattr(memory, method, None))]
    if missing:
        raise _bad_name(f"must have the methods {', '.join(_METHODS)}; no {missing[0]}()", name)
    try:
        inspect.signature(memory.fetch).bind("")
    except TypeError as error:
        raise _bad_name(f"must have a fetch(query) ({error})", name) from error
    return memory


def _factory(name: str) -> Callable[[int], Memory]:
    module_name, colon, class_name = _BUILT_IN.get(name, name).partition(":")
    if not colon:
        near = difflib.get_close_matches(name, _BUILT_IN, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise _bad_name(
            f"must be one of {', '.join(_BUILT_IN)} or package.module:Class", name, hint
        )
    try:
        found: Any = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # whatever the module of a stranger raises
        raise _bad_name(f"must be importable ({error})", name) from error
    if not callable(found):
        raise _bad_name("must name a class", name)
    return cast(Callable[[int], Memory], found)


def _bad_name(rule: str, name: str, hint: str = "") -> ConfigError:
    return ConfigError("env.memory", rule, name, f"{hint}Use 'window', or correct the path.")
