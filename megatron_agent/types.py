"""The records that travel between the hops of a training step (ARCHITECTURE.md, "The path of the
data").

Letters in names: P tasks in a batch, G sessions of a group, T steps of an episode, N rows, L
tokens. Records are frozen, keyword-only and picklable. No heavy imports here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AGENT_NAME = "gym_steps"
"""verl's agent loop that plays one session of a grouped environment: in dataset rows, in the
configuration, and where the loop is registered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedPrompt:
    """Between hops 3 and 4: a user message as the policy reads it."""

    ids_L: tuple[int, ...]
    images: tuple[Any, ...] = ()
    """Pictures behind the image tokens, in their order and size for the policy; the same ones go to
    the inference server and into the training row."""
    num_image_tokens: int = 0
    """How many of the ids stand for patches of a picture."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Hop 4: what the inference server sampled for one prompt."""

    token_ids_L: tuple[int, ...]
    """Sampled ids, exactly as trained on later; never re-encoded."""
    log_probs_L: tuple[float, ...] | None
    """Log-probability of each sampled id under the policy that sampled it, or None if not asked
    for."""
    text: str
    """The decoded ids, special tokens removed. Only for parsing the action."""
    weight_version_min: int | None = None
    """Version of the weights at the first token."""
    weight_version_max: int | None = None
    """Version of the weights at the last token."""
    stop_reason: str = "stop"
    """``stop``, ``length`` or ``abort``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Hops 3-5: one step of an episode, from what was seen to what came of it."""

    step_idx: int
    """0 at the first step of the episode."""
    observation: str
    """Text the environment showed before the action."""
    anchor: str
    """Digest of the canonical state before the action (`megatron_agent.anchors`)."""
    anchor_text: str | None
    """The canonical state itself where it is text, for grouping steps by similarity."""
    admissible_actions: tuple[str, ...]
    prompt: str
    """The user message; a prompt is built afresh each step and never grows with the episode."""
    prompt_ids_L: tuple[int, ...]
    generation: Generation
    action: str
    """What was sent to the environment (after projection)."""
    action_valid: bool
    invalid_reason: str
    """Why the action was not valid; empty when it was."""
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any] = field(default_factory=dict)
    generate_s: float = 0.0
    env_s: float = 0.0
    images: tuple[Any, ...] = ()
    """Pictures of the prompt (`EncodedPrompt.images`); empty for a policy that reads only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """Hops 3-5 together: one session of a task, finished."""

    uid: str
    """Group id: all sessions of one task in one iteration share it."""
    session_id: int
    env: str
    task_id: str
    seed: int
    split: str
    turns_T: tuple[Turn, ...]
    success: bool
    failure: str = ""
    """Empty, or why the episode ended without the environment's say: ``env_error: ...``,
    ``env_timeout: ...`` (docs/faults.md has all kinds), ``prompt_too_long: ...``,
    ``generation_error: ...``. A failed episode is data: it stays in its
    group."""
    reset_s: float = 0.0
    """What the first observation took, waiting for the environment's process included."""
    num_restores: int = 0
    """How often the episode went on in another process, because its own was ended by others."""

    @property
    def episode_return(self) -> float:
        """Sum of step rewards, undiscounted."""
        return float(sum(turn.reward for turn in self.turns_T))

    @property
    def num_steps(self) -> int:
        return len(self.turns_T)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSample:
    """Hop 6: one training row. A session of T steps gives T rows (one LLM call each)."""

    uid: str
    session_id: int
    step_idx: int
    prompt_ids_L: tuple[int, ...]
    response_ids_L: tuple[int, ...]
    log_probs_L: tuple[float, ...] | None
    anchor: str
    step_reward: float
    episode_return: float
    episode_length: int
    action_valid: bool
    success: bool
    failed: bool
    """The episode ended by a failure (crash, time-out, over-long prompt), not by the
    environment."""
    weight_version_min: int | None
    weight_version_max: int | None
    images: tuple[Any, ...] = ()
    """Pictures of this step's prompt, and of no other."""

    @property
    def key(self) -> str:
        """Row key ``{uid}_{session}_{step}``.

        >>> StepSample(uid="a1", session_id=2, step_idx=3, prompt_ids_L=(1,), response_ids_L=(2,),
        ...     log_probs_L=None, anchor="x", step_reward=0.0, episode_return=1.0, episode_length=4,
        ...     action_valid=True, success=True, failed=False, weight_version_min=0,
        ...     weight_version_max=0).key
        'a1_2_3'
        """
        return f"{self.uid}_{self.session_id}_{self.step_idx}"
