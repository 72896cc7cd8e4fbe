"""How often a policy succeeds when it samples its actions, without any server.

The same prompts, the same memory and the same action parsing as in the rollout; the episodes of a
batch go in lock-step, which is the quick way for a model this small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envs.base import Observation
from envs.registry import EnvSpec
from megatron_agent.policy.sampling import sample_responses
from megatron_agent.policy.tokenizer import encode_prompt
from megatron_agent.rollout.memory import load_memory
from megatron_agent.rollout.prompting import past_step, step_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from megatron_agent.task_rows import EnvTask


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What a policy achieved on a set of episodes."""

    num_episodes: int
    num_successes: int
    success_rate: float
    interval_low: float
    interval_high: float
    """Wilson interval, 95 per cent."""
    mean_steps: float
    valid_action_rate: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def wilson_interval(num_successes: int, num_trials: int, z: float = 1.96) -> tuple[float, float]:
    """Confidence interval of a success rate that behaves at 0 and 1.

    Example:
        >>> [round(bound, 3) for bound in wilson_interval(8, 10)]
        [0.49, 0.943]
        >>> wilson_interval(0, 0)
        (0.0, 1.0)
    """
    if num_trials == 0:
        return 0.0, 1.0
    rate = num_successes / num_trials
    spread = z * math.sqrt(rate * (1 - rate) / num_trials + z * z / (4 * num_trials * num_trials))
    scale = 1 + z * z / num_trials
    centre = rate + z * z / (2 * num_trials)
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def evaluate_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    spec: EnvSpec,
    tasks: Sequence[EnvTask],
    *,
    max_steps: int,
    history_length: int,
    memory: str = "window",
    temperature: float = 1.0,
    max_new_tokens: int = 16,
    seed: int = 0,
    batch_size: int = 256,
) -> Evaluation:
    """Play one episode of every task and count successes.

    Args:
        tasks: give a task several times to play it several times.
        max_steps: episode length limit; an episode that reaches it has failed.
        history_length: past steps that a prompt may show.
        memory: which ones: a name, or ``package.module:Class``.
        seed: of the sampling.
        batch_size: episodes played side by side.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    model.eval()
    played: list[_Session] = []
    for first in range(0, len(tasks), batch_size):
        sessions = [
            _Session(spec, task, memory, history_length)
            for task in tasks[first : first + batch_size]
        ]
        played.extend(sessions)
        for step_idx in range(max_steps):
            running = [session for session in sessions if not session.done]
            if not running:
                break
            prompts = [session.prompt(step_idx, max_steps) for session in running]
            responses_N = sample_responses(
                model,
                [encode_prompt(tokenizer, prompt) for prompt in prompts],
                eos_id=tokenizer.eos_token_id,
                pad_id=tokenizer.pad_token_id,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                generator=generator,
            )
            for session, response_ids_L in zip(running, responses_N, strict=True):
                session.act(step_idx, tokenizer.decode(response_ids_L, skip_special_tokens=True))
        for session in sessions:
            session.close()
    return _summarise(played)


class _Session:
    """One episode while it is being played."""

    def __init__(self, spec: EnvSpec, task: EnvTask, memory: str, history_length: int) -> None:
        self._spec = spec
        self._env = spec.make()
        self._observation: Observation = self._env.reset(seed=task.seed, options=task.options)
        self._memory = load_memory(memory, history_length)
        self._memory.reset(task)
        self.done = False
        self.success = False
        self.num_steps = 0
        self.num_valid = 0

    def prompt(self, step_idx: int, max_steps: int) -> str:
        return step_prompt(
            self._spec, self._memory, self._observation, step_idx=step_idx, max_steps=max_steps
        )

    def act(self, step_idx: int, response: str) -> None:
        parsed = self._spec.project(response, self._observation.admissible_actions)
        outcome = self._env.step(parsed.action)
        self._memory.store(past_step(step_idx, self._observation, response, parsed, outcome))
        self._observation = outcome.observation
        self.num_steps += 1
        self.num_valid += parsed.valid and outcome.action_valid
        self.success = bool(outcome.info.get("success", False))
        self.done = outcome.terminated or outcome.truncated

    def close(self) -> None:
        self._env.close()


def _summarise(played: Sequence[_Session]) -> Evaluation:
    num_steps = sum(session.num_steps for session in played)
    num_successes = sum(session.success for session in played)
    low, high = wilson_interval(num_successes, len(played))
    return Evaluation(
        num_episodes=len(played),
        num_successes=num_successes,
        success_rate=num_successes / max(1, len(played)),
        interval_low=low,
        interval_high=high,
        mean_steps=num_steps / max(1, len(played)),
        valid_action_rate=sum(session.num_valid for session in played) / max(1, num_steps),
    )
