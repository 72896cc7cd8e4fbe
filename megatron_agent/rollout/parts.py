"""What an episode is put together from, as types: whatever fits these can be plugged in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from envs.base import Observation, ParsedAction, PromptContext, StepOutcome
from megatron_agent.types import EncodedPrompt, Generation

MessageContent = str | list[dict[str, Any]]
"""What a user message says: a text, or parts ``{"type": "text", "text": ...}`` and
``{"type": "image", "image": ...}`` (`megatron_agent.rollout.images`)."""
Encode = Callable[[MessageContent], Awaitable[EncodedPrompt] | EncodedPrompt]
"""User message to prompt ids, chat template included."""
Generate = Callable[[EncodedPrompt, str], Awaitable[Generation]]
"""``(prompt, request id)`` to a sampled response; the request id is the row key of the step."""


class Session(Protocol):
    """One environment for one episode; see `megatron_agent.rollout.env_session.EnvSession`."""

    @property
    def num_restores(self) -> int:
        """How often the episode went on in another process."""
        ...

    async def reset(self) -> Observation: ...

    async def step(self, action: str) -> StepOutcome: ...

    async def close(self) -> None: ...


class Behaviour(Protocol):
    """The part of an `envs.registry.EnvSpec` that an episode needs."""

    @property
    def build_prompt(self) -> Callable[[PromptContext], str]: ...

    @property
    def project(self) -> Callable[[str, Sequence[str]], ParsedAction]: ...
