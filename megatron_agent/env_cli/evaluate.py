"""``env eval``: an agent plays held-out tasks, by the same episodes as in training."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from envs.base import Observation, StepOutcome, TextEnv
from envs.spec import EnvSpec
from megatron_agent.env_cli.agents import Agent, Moment
from megatron_agent.errors import EnvError, GenerationError
from megatron_agent.policy.evaluate import wilson_interval
from megatron_agent.rollout.env_worker import checked_observation, checked_outcome
from megatron_agent.rollout.episode import run_episode
from megatron_agent.rollout.memory import load_memory
from megatron_agent.rollout.parts import MessageContent
from megatron_agent.task_rows import EnvTask
from megatron_agent.types import EncodedPrompt, Episode, Generation

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSettings:
    """How episodes are played."""

    max_steps: int
    history_length: int = 2
    memory: str = "window"
    num_parallel: int = 8
    """Episodes under way at a time; matters for a model behind a server."""
    seed: int = 0


def play_tasks(
    spec: EnvSpec, agent: Agent, tasks: Sequence[EnvTask], settings: EvalSettings
) -> list[Episode]:
    """One episode of every task, in the order of the tasks. What fails inside one is in it."""
    return asyncio.run(_play_all(spec, agent, tasks, settings))


async def _play_all(
    spec: EnvSpec, agent: Agent, tasks: Sequence[EnvTask], settings: EvalSettings
) -> list[Episode]:
    places = asyncio.Semaphore(settings.num_parallel)
    # asyncio's own has few threads, and a model's answer is waited for in one.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(settings.num_parallel))

    async def play(number: int, task: EnvTask) -> Episode:
        async with places:
            return await _play(number, spec, agent, task, settings)

    return await asyncio.gather(*(play(number, task) for number, task in enumerate(tasks)))


async def _play(
    number: int, spec: EnvSpec, agent: Agent, task: EnvTask, settings: EvalSettings
) -> Episode:
    session = _LocalSession(spec, task)
    player = _Player(spec, agent, session, random.Random(f"{settings.seed}/{task.task_id}"))
    return await run_episode(
        task=task,
        uid=f"eval{number}",
        session_id=0,
        session=session,
        spec=player,
        memory=load_memory(settings.memory, settings.history_length),
        encode=player.encode,
        generate=player.generate,
        max_steps=settings.max_steps,
        max_prompt_length=1,
    )


class _LocalSession:
    """One environment in this process, so that an expert can look into it. As in a worker process,
    whatever the environment raises is a failure of its episode.
    """

    num_restores = 0

    def __init__(self, spec: EnvSpec, task: EnvTask) -> None:
        self._spec, self._task = spec, task
        self.env: TextEnv | None = None
        self.observation: Observation | None = None

    async def reset(self) -> Observation:
        with _as_env_error("reset"):
            self.env = self._spec.make()
            observation = self.env.reset(seed=self._task.seed, options=self._task.options)
            self.observation = checked_observation(observation, "reset()")
        return self.observation

    async def step(self, action: str) -> StepOutcome:
        assert self.env is not None
        with _as_env_error("step"):
            outcome = checked_outcome(self.env.step(action))
        self.observation = outcome.observation
        return outcome

    async def close(self) -> None:
        try:
            if self.env is not None:
                with _as_env_error("close"):
                    self.env.close()
        except EnvError as error:
            _log.warning("%s: %s", self._task.task_id, error)


@contextmanager
def _as_env_error(operation: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # the environment of a stranger may raise anything
        raise EnvError(f"{operation} raised {type(error).__name__}: {error}") from error


class _Player:
    """Stands between an episode, which speaks of tokens, and an agent, which reads the prompt."""

    def __init__(
        self, spec: EnvSpec, agent: Agent, session: _LocalSession, rng: random.Random
    ) -> None:
        self._agent, self._session, self._rng = agent, session, rng
        self._prompt = ""
        self.build_prompt, self.project = spec.build_prompt, spec.project

    def encode(self, content: MessageContent) -> EncodedPrompt:
        """Keep the prompt; one token stands for it."""
        assert isinstance(content, str)  # agents here read and do not see
        self._prompt = content
        return EncodedPrompt(ids_L=(0,))

    async def generate(self, prompt: EncodedPrompt, request_id: str) -> Generation:
        """Ask the agent."""
        assert self._session.observation is not None and self._session.env is not None
        moment = Moment(
            prompt=self._prompt,
            observation=self._session.observation,
            env=self._session.env,
            seed=self._rng.getrandbits(31),
        )
        text = await self._agent.respond(moment)
        if text is None:
            raise GenerationError("the agent gave up.")
        return Generation(token_ids_L=(0,), log_probs_L=None, text=text)


def summarise(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Figures of an evaluation, as plain data.

    Returns:
        ``num_episodes``, ``num_successes``, ``success_rate`` with a 95 per cent Wilson interval,
        ``mean_return``, ``mean_steps``, ``valid_action_rate``, ``failures`` and
        ``invalid_reasons`` (counts), and ``by_task_type`` where the environment tells types.
    """
    turns = [turn for episode in episodes for turn in episode.turns_T]
    num_episodes = len(episodes)
    types: dict[str, list[Episode]] = {}
    for episode in episodes:
        task_type = episode.turns_T[-1].info.get("task_type") if episode.turns_T else None
        if task_type is not None:
            types.setdefault(str(task_type), []).append(episode)
    return {
        "num_episodes": num_episodes,
        **_success(episodes),
        "mean_return": sum(episode.episode_return for episode in episodes) / max(1, num_episodes),
        "mean_steps": len(turns) / max(1, num_episodes),
        "valid_action_rate": sum(turn.action_valid for turn in turns) / max(1, len(turns)),
        "failures": dict(Counter(episode.failure for episode in episodes if episode.failure)),
        "invalid_reasons": dict(
            Counter(turn.invalid_reason for turn in turns if not turn.action_valid)
        ),
        "by_task_type": {
            task_type: {"num_episodes": len(played), **_success(played)}
            for task_type, played in sorted(types.items())
        },
    }


def summary_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """The figures for a person."""
    low, high = summary["interval"]
    yield (
        f"success  {summary['success_rate']:.3f} [{low:.2f}, {high:.2f}]  "
        f"({summary['num_successes']} of {summary['num_episodes']} episodes)"
    )
    yield f"return   {summary['mean_return']:.3f}"
    yield f"steps    {summary['mean_steps']:.1f}"
    yield f"valid    {summary['valid_action_rate']:.3f} of the actions"
    for task_type, part in summary["by_task_type"].items():
        yield (
            f"  {task_type}: {part['success_rate']:.3f} "
            f"({part['num_successes']} of {part['num_episodes']})"
        )
    for reason, count in summary["invalid_reasons"].items():
        yield f"invalid  {count} x {reason}"
    for failure, count in summary["failures"].items():
        yield f"failed   {count} x {failure}"


def _success(episodes: Sequence[Episode]) -> dict[str, Any]:
    num_successes = sum(episode.success for episode in episodes)
    return {
        "num_successes": num_successes,
        "success_rate": num_successes / max(1, len(episodes)),
        "interval": wilson_interval(num_successes, len(episodes)),
    }
