"""Memory modules beside the window: what to show when the last few steps are not what matters.

Each takes ``history_length``, the most past steps a prompt may show, and shows the last step
whenever it shows any: an agent that does not see what it just did does it again.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from envs.base import PastStep
from megatron_agent.rollout.memory import WindowMemory, checked_length

if TYPE_CHECKING:
    from megatron_agent.tasks import EnvTask

_WORD = re.compile(r"\w+")
_SLOT = re.compile(r"<memory>(.*?)</memory>", re.IGNORECASE | re.DOTALL)

MAX_SLOT_CHARS = 2000
"""What an agent writes beyond this is cut off: a prompt must not grow with the episode."""


class KeyEventMemory:
    """The last step, and before it the steps where something happened.

    Rewards and penalties come first, then actions that were refused, then observations with the
    most words that the episode had not shown before. Among equals the newer one is kept.

    Example:
        >>> memory = KeyEventMemory(history_length=2)
        >>> for step_idx, reward in enumerate([0.0, 1.0, 0.0, 0.0]):
        ...     memory.store(PastStep(step_idx=step_idx, observation="hall", action="wait",
        ...                           reward=reward))
        >>> [step.step_idx for step in memory.fetch()]
        [1, 3]
    """

    def __init__(self, history_length: int) -> None:
        self.history_length = checked_length(history_length)
        self._events: list[tuple[tuple[float, bool, int, int], PastStep]] = []
        self._words: set[str] = set()

    def reset(self, task: EnvTask) -> None:
        self._events.clear()
        self._words.clear()

    def store(self, step: PastStep) -> None:
        words = set(_WORD.findall(step.observation.casefold()))
        num_new = len(words - self._words)
        self._words |= words
        rank = (abs(step.reward), not step.action_valid, num_new, step.step_idx)
        self._events.append((rank, step))

    def fetch(self, query: str = "") -> list[PastStep]:
        if not self.history_length or not self._events:
            return []
        *earlier, (_, last) = self._events
        earlier.sort(key=lambda event: event[0], reverse=True)
        chosen = [step for _, step in earlier[: self.history_length - 1]]
        return sorted([*chosen, last], key=lambda step: step.step_idx)


class SummarySlotMemory(WindowMemory):
    """The last steps, and one slot that the agent fills itself.

    The prompt shows the slot's text and how to replace it: by ``<memory>...</memory>`` anywhere in
    a response. The last one of a response counts, an empty one clears the slot. With
    ``history_length`` 0 the slot is all that is remembered.

    Example:
        >>> memory = SummarySlotMemory(history_length=0)
        >>> memory.store(PastStep(step_idx=0, observation="hall", action="wait",
        ...                       response="<memory>The key is red.</memory><action>wait</action>"))
        >>> memory.fetch(), "The key is red." in memory.notes()
        ([], True)
    """

    def __init__(self, history_length: int) -> None:
        super().__init__(history_length)
        self._slot = ""

    def reset(self, task: EnvTask) -> None:
        super().reset(task)
        self._slot = ""

    def store(self, step: PastStep) -> None:
        super().store(step)
        written = _SLOT.findall(step.response)
        if written:
            self._slot = written[-1].strip()[:MAX_SLOT_CHARS]

    def notes(self) -> str:
        """The slot, and how to write into it."""
        return (
            f"Your notes: {self._slot or 'none yet'}\n"
            "To replace them, write <memory>what to remember</memory> before your action."
        )


class SearchMemory:
    """The last step, and before it the steps most like the present observation.

    Steps are compared by the words they share with the observation, rare words counting more: in a
    house of many rooms it brings back what was done in this one.

    Example:
        >>> memory = SearchMemory(history_length=2)
        >>> for step_idx, room in enumerate(["kitchen fridge", "bedroom", "hall", "cellar"]):
        ...     memory.store(PastStep(step_idx=step_idx, observation=room, action="look"))
        >>> [step.step_idx for step in memory.fetch("the kitchen again")]
        [0, 3]
    """

    def __init__(self, history_length: int) -> None:
        self.history_length = checked_length(history_length)
        self._past: list[tuple[set[str], PastStep]] = []

    def reset(self, task: EnvTask) -> None:
        self._past.clear()

    def store(self, step: PastStep) -> None:
        words = set(_WORD.findall(f"{step.observation} {step.action}".casefold()))
        self._past.append((words, step))

    def fetch(self, query: str = "") -> list[PastStep]:
        if not self.history_length or not self._past:
            return []
        *earlier, (_, last) = self._past
        wanted = set(_WORD.findall(query.casefold()))
        count = Counter(word for words, _ in self._past for word in words & wanted)

        def likeness(entry: tuple[set[str], PastStep]) -> tuple[float, int]:
            words, step = entry
            # Sorted: a sum in the order of a set would differ between processes by a rounding.
            shared = sorted(words & wanted)
            weight = sum(math.log(1 + len(self._past) / count[word]) for word in shared)
            return weight / math.sqrt(1 + len(words)), step.step_idx

        earlier.sort(key=likeness, reverse=True)
        chosen = [step for _, step in earlier[: self.history_length - 1]]
        return sorted([*chosen, last], key=lambda step: step.step_idx)
