"""Agents that need no training: random, the environment's expert, a model behind a server."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Protocol

from envs.base import Observation, TextEnv
from envs.spec import EnvSpec
from megatron_agent.env_cli.openai_client import ChatServer
from megatron_agent.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """What an agent may look at when it is its turn."""

    prompt: str
    observation: Observation
    env: TextEnv
    seed: int
    """Differs from episode to episode and step to step."""


class Agent(Protocol):
    """Answers with a response, as a model would; None gives the episode up."""

    async def respond(self, moment: Moment) -> str | None: ...


@dataclass(frozen=True)
class RandomAgent:
    """A legal action, drawn evenly."""

    spec: EnvSpec

    async def respond(self, moment: Moment) -> str | None:
        action = self.spec.random_action(random.Random(moment.seed), moment.observation)
        return self.spec.format_response(action)


@dataclass(frozen=True)
class ExpertAgent:
    """The first action of the expert's plan; gives up where it has none."""

    spec: EnvSpec

    async def respond(self, moment: Moment) -> str | None:
        assert self.spec.expert is not None
        plan = self.spec.expert(moment.env)
        return self.spec.format_response(plan[0]) if plan else None


@dataclass(frozen=True)
class ModelAgent:
    """A prompting agent: the environment's prompt, one answer."""

    server: ChatServer

    async def respond(self, moment: Moment) -> str | None:
        return await asyncio.to_thread(
            self.server.complete, moment.prompt, seed=moment.seed % 2**31
        )


def make_agent(policy: str, spec: EnvSpec, *, temperature: float, max_tokens: int) -> Agent:
    """The agent that ``--policy`` names.

    Raises:
        ConfigError: no such policy, or an expert where there is none.
    """
    kind, _, rest = policy.partition(":")
    if kind == "openai" and rest:
        return ModelAgent(ChatServer.parse(rest, temperature=temperature, max_tokens=max_tokens))
    if policy == "random":
        return RandomAgent(spec)
    if policy == "expert":
        if spec.expert is None:
            raise ConfigError(
                "--policy",
                f"must be one that {spec.name} has; it has no expert",
                policy,
                "Use random, or openai:BASE_URL:MODEL.",
            )
        return ExpertAgent(spec)
    raise ConfigError(
        "--policy", "must be random, expert or openai:BASE_URL:MODEL", policy, "Use random."
    )
