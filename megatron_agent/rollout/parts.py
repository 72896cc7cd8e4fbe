"""What an episode is put together from, as types: whatever fits these can be plugged in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from envs.base import Observation, ParsedAction, PromptContext, StepOutcome
from megatron_agent.types import Generation

Encode = Callable[[str], Awaitable[list[int]] | list[int]]
"""User message to prompt ids, chat template included."""
Generate = Callable[[Sequence[int], str], Awaitable[Generation]]
"""``(prompt ids, request id)`` to a sampled response; the request id is the row key of the step."""


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
