"""What an environment is: the page to read before writing one.

An environment is a Gymnasium-like object that speaks text. It imports nothing of
``megatron_agent``, is made by a factory, lives in a worker process, and is used for one session at
a time (``reset`` may be called again).

Example of one episode::

    env = FrozenLakeEnv()
    observation = env.reset(seed=7, options={"size": 4})
    outcome = env.step("right")  # StepOutcome(observation, reward, terminated, ...)
    env.close()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What the agent sees before it acts."""

    text: str
    anchor: Any
    """Canonical state to group steps by: text, bytes, a number, or a numpy array. No move counters,
    no echo of the last action, no colour codes: two visits of one state must have equal anchors."""
    admissible_actions: tuple[str, ...] = ()
    """Actions that are legal now; empty when the environment does not enumerate them."""
    image: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What one action led to (Gymnasium's five values plus validity)."""

    observation: Observation
    reward: float
    terminated: bool
    """The task ended by its own rules (goal reached, agent dead)."""
    truncated: bool
    """The episode was cut from outside (step limit)."""
    action_valid: bool = True
    """False when the environment did not accept the action as legal."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Extra facts; ``success: bool`` is read at the end of the episode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedAction:
    """What an environment's ``actions.py`` makes of a response."""

    action: str
    """Text to hand to ``step``; a harmless fallback when not valid."""
    valid: bool
    reason: str = ""
    """Why it is not valid, in a few words that can be counted in metrics (e.g.
    ``no_action_tag``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastStep:
    """One remembered step, as memory modules hand it to prompts."""

    step_idx: int
    observation: str
    action: str
    reward: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptContext:
    """All that a prompt may use. A prompt is built afresh each step from this and nothing else."""

    observation: Observation
    step_idx: int
    max_steps: int
    history: Sequence[PastStep]
    """The window of past steps from the memory module, oldest first."""


class TextEnv(ABC):
    """Base class of environments. Subclasses must be picklable by factory, deterministic given the
    seed, and must leave global random state alone.
    """

    @abstractmethod
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start an episode. Equal ``(seed, options)`` give equal episodes in any process."""

    @abstractmethod
    def step(self, action: str) -> StepOutcome:
        """Take one action. An illegal action never raises: it returns ``action_valid=False``."""

    def close(self) -> None:  # noqa: B027 - nothing to free is the common case
        """Free resources. May be called twice."""
