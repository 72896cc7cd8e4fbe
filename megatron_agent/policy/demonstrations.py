"""Expert episodes as supervised examples, imperfect on purpose.

Reinforcement learning needs a start that succeeds sometimes and still explores. So two things are
spoiled:

- *moves*: with probability ``wander`` the demonstrator plays a random legal action and goes on from
  there; the policy sees states beside the expert's path, with the expert's advice for them;
- *labels*: with probability ``label_noise`` the answer to imitate names a random legal action, so
  the policy never becomes certain.

Prompts are those of the rollout: made by the same function, with the same memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envs.base import Observation, ParsedAction
from envs.registry import EnvSpec
from megatron_agent.errors import ConfigError
from megatron_agent.rollout.memory import Memory
from megatron_agent.rollout.prompting import past_step, step_prompt

if TYPE_CHECKING:
    from megatron_agent.task_rows import EnvTask


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """One supervised example: after ``prompt``, say ``response``."""

    prompt: str
    response: str


def demonstrate(
    spec: EnvSpec,
    tasks: Iterable[EnvTask],
    *,
    max_steps: int,
    memory: Memory,
    wander: float,
    label_noise: float,
    rng: random.Random,
) -> Iterator[Demonstration]:
    """Play one episode of every task and yield its steps.

    Args:
        spec: the environment, with the prompt of the run to come.
        tasks: where episodes start.
        max_steps: episode length limit.
        memory: as in the run to come; it serves one episode after the other.
        wander: chance of a random move.
        label_noise: chance of a random label.
        rng: the only source of randomness.

    Raises:
        ConfigError: the environment has no expert.
    """
    if spec.expert is None:
        raise ConfigError(
            "env", "must have an expert to warm-start from", spec.name, "Use --warm-start none."
        )
    env = spec.make()
    try:
        for task in tasks:
            observation = env.reset(seed=task.seed, options=task.options)
            memory.reset(task)
            for step_idx in range(max_steps):
                plan = spec.expert(env)
                if not plan:
                    break
                yield Demonstration(
                    prompt=step_prompt(
                        spec, memory, observation, step_idx=step_idx, max_steps=max_steps
                    ),
                    response=spec.format_response(_spoil(plan[0], observation, label_noise, rng)),
                )
                action = _spoil(plan[0], observation, wander, rng)
                outcome = env.step(action)
                said = spec.format_response(action)
                parsed = ParsedAction(action=action, valid=True)
                memory.store(past_step(step_idx, observation, said, parsed, outcome))
                observation = outcome.observation
                if outcome.terminated or outcome.truncated:
                    break
    finally:
        env.close()


def _spoil(action: str, observation: Observation, probability: float, rng: random.Random) -> str:
    """``action``, or with ``probability`` any admissible one. Always draws: one stream for every
    setting.
    """
    drawn, other = rng.random(), rng.random()
    choices = observation.admissible_actions
    if drawn >= probability or not choices:
        return action
    return choices[int(other * len(choices))]
