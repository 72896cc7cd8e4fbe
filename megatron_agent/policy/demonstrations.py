"""Expert episodes as supervised examples, imperfect on purpose.

Reinforcement learning needs a start that succeeds sometimes and still explores. So two things are
spoiled:

- *moves*: with probability ``wander`` the demonstrator plays a random legal action and goes on from
  there; the policy sees states beside the expert's path, with the expert's advice for them;
- *labels*: with probability ``label_noise`` the answer to imitate names a random legal action, so
  the policy never becomes certain.

Prompts are built by the same function and with the same history window as in the rollout.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from envs.base import Observation, PastStep, PromptContext
from envs.registry import EnvSpec
from megatron_agent.errors import ConfigError


class EpisodeStart(Protocol):
    """What `envs.base.TextEnv.reset` takes; a task of `megatron_agent.tasks` is one."""

    @property
    def seed(self) -> int: ...

    @property
    def options(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """One supervised example: after ``prompt``, say ``response``."""

    prompt: str
    response: str


def demonstrate(
    spec: EnvSpec,
    starts: Iterable[EpisodeStart],
    *,
    max_steps: int,
    history_length: int,
    wander: float,
    label_noise: float,
    rng: random.Random,
) -> Iterator[Demonstration]:
    """Play one episode from every start and yield its steps.

    Raises:
        ConfigError: the environment has no expert.
    """
    if spec.expert is None:
        raise ConfigError(
            "env", "must have an expert to warm-start from", spec.name, "Use --warm-start none."
        )
    env = spec.make()
    try:
        for start in starts:
            observation = env.reset(seed=start.seed, options=start.options)
            history: list[PastStep] = []
            for step_idx in range(max_steps):
                plan = spec.expert(env)
                if not plan:
                    break
                yield Demonstration(
                    prompt=spec.build_prompt(
                        prompt_context(observation, step_idx, max_steps, history, history_length)
                    ),
                    response=spec.format_response(_spoil(plan[0], observation, label_noise, rng)),
                )
                action = _spoil(plan[0], observation, wander, rng)
                outcome = env.step(action)
                history.append(past_step(step_idx, observation, action, outcome.reward))
                observation = outcome.observation
                if outcome.terminated or outcome.truncated:
                    break
    finally:
        env.close()


def prompt_context(
    observation: Observation,
    step_idx: int,
    max_steps: int,
    history: Sequence[PastStep],
    history_length: int,
) -> PromptContext:
    """What the prompt of one step may use: the last ``history_length`` steps (none when 0)."""
    return PromptContext(
        observation=observation,
        step_idx=step_idx,
        max_steps=max_steps,
        history=tuple(history[-history_length:]) if history_length else (),
    )


def past_step(step_idx: int, observation: Observation, action: str, reward: float) -> PastStep:
    """The memory of one step."""
    return PastStep(step_idx=step_idx, observation=observation.text, action=action, reward=reward)


def _spoil(action: str, observation: Observation, probability: float, rng: random.Random) -> str:
    """``action``, or with ``probability`` any admissible one. Always draws: one stream for every
    setting.
    """
    drawn, other = rng.random(), rng.random()
    choices = observation.admissible_actions
    if drawn >= probability or not choices:
        return action
    return choices[int(other * len(choices))]
