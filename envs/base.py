"""What an environment is: the page to read before writing one.

An environment is Gymnasium's ``reset`` and five-value ``step`` in text::

    env = FrozenLakeEnv()
    observation = env.reset(seed=7, options={"size": 4})
    outcome = env.step("right")  # StepOutcome(observation, reward, terminated, truncated, ...)
    env.close()

Three things are asked of it beyond Gymnasium, because agents are compared in groups: n sessions
start from one ``(seed, options)``, and steps of different sessions that saw the same state are
compared with each other.

1. **Equal ``(seed, options)`` start equal episodes**, in any process, on any machine. Use a
   generator of your own (``random.Random(seed)``); never the global one, ``hash()`` of a text, or
   the order of a set. A library that insists on the global one runs inside
   `envs.randomness.PrivateRandomState`.
2. **`Observation.anchor` names the state**: what decides the future, and nothing else. No move
   counter, no echo of the last action, no colour codes.
3. **What the agent says never raises.** Illegal, empty, or 100 kB long: ``step`` answers with
   ``action_valid=False``, leaves the state alone, and gives reward 0 or a penalty below it.

Whatever goes wrong inside (a lost server, a bug) may raise; the episode then counts as failed.

Around the environment stand, in the same folder and under the same names everywhere: ``prompts.py``
(what the agent is shown), ``actions.py`` (what its answer means), ``expert.py`` (who knows how to
win, if anybody does), and the `envs.registry.EnvSpec` in ``__init__.py`` that ties them together.
Three layers use them, and each can be replaced without the others: worker processes that hold
environments, the pool that deals out groups and keeps deadlines, and the episode that builds
prompts, remembers, and reads actions. An environment imports nothing of ``megatron_agent``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

IMAGE_MARK = "\ufffc"
"""Where in a prompt the image of the observation belongs (Unicode's stand-in for an object). A
prompt without it gets the image right before the observation's text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What the agent sees before it acts."""

    text: str
    """Printable, not empty; what changes from step to step."""
    anchor: Any
    """Canonical state to group steps by: text, bytes, a number, a numpy array, or tuples, lists and
    dicts of these. Two visits of one state must have equal anchors. Text is best: it can also be
    grouped by similarity."""
    admissible_actions: tuple[str, ...] = ()
    """Actions that are legal now, each once; empty when the environment does not enumerate them."""
    image: Any = None
    """The view as a numpy array of ``uint8``, shape ``[height, width, 3]`` (RGB); None without one,
    and in the prompts of a policy that does not see."""
    task: str = ""
    """What is to be done, where that is not told by ``text``; the same at every step of an episode.
    A prompt knows nothing of earlier observations but its window, so say it each time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What one action led to (Gymnasium's five values plus validity)."""

    observation: Observation
    reward: float
    """Of this step alone, finite. Rewards add up to the return."""
    terminated: bool
    """The task ended by its own rules (goal reached, agent dead)."""
    truncated: bool
    """The episode was cut from outside (a limit of the environment itself; the runner has its own,
    ``env.max_steps``)."""
    action_valid: bool = True
    """False when the environment did not accept the action as legal."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Extra facts in plain values. ``success: bool`` is required; the last one counts.
    ``task_type: str`` is optional: `megatron-agent env eval` also reports success by type."""


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
    """Text before the action."""
    action: str
    """What was sent to the environment; empty when the answer could not be read."""
    reward: float = 0.0
    response: str = ""
    """Everything the agent said, for memories that read more than the action; often left empty."""
    action_valid: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptContext:
    """All that a prompt may use. A prompt is built afresh each step from this and nothing else."""

    observation: Observation
    step_idx: int
    """0 at the first step; ``history`` may hold fewer steps than this."""
    max_steps: int
    history: Sequence[PastStep]
    """Past steps chosen by the memory module, oldest first; often the last few."""
    notes: str = ""
    """Text of the memory module to be shown as it is, such as a summary the agent wrote for itself.
    A prompt that does not show it gets it at its front (`megatron_agent.rollout.prompting`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStart:
    """Where one task of a fixed list begins: what ``reset`` is called with."""

    name: str
    """Unique within its split, stable for ever, readable: part of the task's id."""
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON values, laid over the options that the list was asked for with."""


class TextEnv(ABC):
    """Base class of environments. ``make`` of the spec builds one, in a worker process; it serves
    one session at a time and may be reset any number of times.
    """

    @abstractmethod
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        """Start an episode. Equal ``(seed, options)`` give equal episodes in any process.

        Raises:
            ValueError: an option that cannot work.
        """

    @abstractmethod
    def step(self, action: str) -> StepOutcome:
        """Take one action. An illegal action never raises: it returns ``action_valid=False``.

        Raises:
            RuntimeError: no episode is running (the caller's mistake, not the agent's).
        """

    def close(self) -> None:  # noqa: B027 - nothing to free is the common case
        """Free resources. May be called twice."""
