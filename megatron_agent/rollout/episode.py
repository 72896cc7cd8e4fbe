"""Hops 3 to 5: one episode, a coroutine.

    observe -> recall (memory) -> prompt -> tokens -> sample -> parse -> step, and again

Every prompt is built afresh from the current observation and a window of past steps; it never grows
with the episode. What goes wrong inside an episode ends it as data (`Episode.failure`): the turns
already played are kept, and the group stays whole. Four things are not data and propagate: being
cancelled, a group whose sessions start in different states, an observation without an anchor, and
mistakes of the caller.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envs.base import Observation, ParsedAction, StepOutcome
from megatron_agent.anchors import anchor_digest
from megatron_agent.errors import (
    AnchorError,
    EnvDiedError,
    EnvError,
    EnvGarbageError,
    EnvLostError,
    EnvMemoryError,
    EnvTimeoutError,
    GenerationError,
    GroupStartError,
    PromptTooLongError,
)
from megatron_agent.rollout.images import seen, user_content
from megatron_agent.rollout.memory import Memory
from megatron_agent.rollout.parts import Behaviour, Encode, Generate, Session
from megatron_agent.rollout.prompting import past_step, step_prompt
from megatron_agent.types import EncodedPrompt, Episode, Generation, Turn

if TYPE_CHECKING:
    from megatron_agent.tasks import EnvTask

ENV_REFUSED = "env_refused"
"""Reason of an action that parsed well and that the environment did not accept."""

_FAILURE_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (PromptTooLongError, "prompt_too_long"),
    (GenerationError, "generation_error"),
    (EnvTimeoutError, "env_timeout"),
    (EnvDiedError, "env_died"),
    (EnvGarbageError, "env_garbage"),
    (EnvMemoryError, "env_memory"),
    (EnvLostError, "env_lost"),
    (EnvError, "env_error"),
)
"""What a failure's text begins with; the first class that fits."""
_MAX_FAILURE_CHARS = 500


async def run_episode(
    *,
    task: EnvTask,
    uid: str,
    session_id: int,
    session: Session,
    spec: Behaviour,
    memory: Memory,
    encode: Encode,
    generate: Generate,
    max_steps: int,
    max_prompt_length: int,
    with_images: bool = False,
) -> Episode:
    """Play one episode to its end and close the session.

    Args:
        task: what is played.
        uid: group id; with ``session_id`` and the step it makes the row keys.
        session_id: number of this session in its group.
        session: not yet reset; closed on return, whatever happens.
        spec: the environment's prompt and action parser.
        memory: for this episode alone.
        encode: user message to prompt ids; may be a coroutine function.
        generate: samples a response.
        max_steps: steps after which the episode is cut (``truncated`` on its last turn).
        max_prompt_length: most tokens a prompt may have.
        with_images: whether the policy sees the image of the present observation; the past is
            always told in words.

    Returns:
        The episode. When it failed before its first step (the reset crashed, the first prompt was
        too long), ``turns_T`` is empty; `megatron_agent.rollout.samples` says what becomes of it.
        When the environment fails on an action, that turn is kept with reward 0.

    Raises:
        AnchorError: an observation has no anchor, or one that cannot be digested.
        GroupStartError: the group's sessions start in different states.
        ConfigError: images are asked for, and an observation has none.
        ValueError: a limit below 1.
    """
    for name, limit in (("max_steps", max_steps), ("max_prompt_length", max_prompt_length)):
        if limit < 1:
            raise ValueError(f"{name} must be >= 1, got {limit}.")
    player = _Player(
        key=f"{uid}_{session_id}",
        session=session,
        spec=spec,
        memory=memory,
        encode=encode,
        generate=generate,
        max_steps=max_steps,
        max_prompt_length=max_prompt_length,
        with_images=with_images,
    )
    failure = ""
    try:
        await player.play(task)
    except GroupStartError:
        raise
    except (EnvError, GenerationError, PromptTooLongError) as error:
        kind = next(kind for cls, kind in _FAILURE_KINDS if isinstance(error, cls))
        failure = f"{kind}: {error}"[:_MAX_FAILURE_CHARS]
    finally:
        await session.close()
    return Episode(
        uid=uid,
        session_id=session_id,
        env=task.env,
        task_id=task.task_id,
        seed=task.seed,
        split=task.split,
        turns_T=tuple(player.turns),
        success=not failure and player.success,
        failure=failure,
        reset_s=player.reset_s,
        num_restores=session.num_restores,
    )


@contextmanager
def _at_step(step_idx: int) -> Iterator[None]:
    """Say at which step an anchor was missing; who calls says in which session."""
    try:
        yield
    except AnchorError as error:
        raise AnchorError(f"step {step_idx}: {error}") from error


@dataclass(kw_only=True)
class _Player:
    """One episode under way."""

    key: str
    session: Session
    spec: Behaviour
    memory: Memory
    encode: Encode
    generate: Generate
    max_steps: int
    max_prompt_length: int
    with_images: bool
    turns: list[Turn] = field(default_factory=list)
    success: bool = False
    reset_s: float = 0.0

    async def play(self, task: EnvTask) -> None:
        """All turns, appended to ``turns`` one by one, so that a failure keeps those before it."""
        self.memory.reset(task)
        started_s = time.perf_counter()
        try:
            with _at_step(0):
                observation = await self.session.reset()
        finally:
            self.reset_s = time.perf_counter() - started_s
        for step_idx in range(self.max_steps):
            outcome = await self._turn(step_idx, observation)
            if outcome.terminated or outcome.truncated:
                break
            observation = outcome.observation
        self.success = bool(outcome.info.get("success", False))

    async def _turn(self, step_idx: int, observation: Observation) -> StepOutcome:
        with _at_step(step_idx):
            anchor = anchor_digest(observation.anchor)
        observation = seen(observation, step_idx=step_idx, with_image=self.with_images)
        prompt = self._prompt(step_idx, observation)
        encoded = await self._encoded(prompt, observation)
        started_s = time.perf_counter()
        generation = await self._sample(encoded, step_idx)
        generated_s = time.perf_counter()
        parsed = self._parse(generation, observation)
        failure: EnvError | None = None
        try:
            outcome = await self.session.step(parsed.action)
            _check_outcome(outcome)
        except EnvError as error:
            failure = error
            outcome = _dead_end(observation)
        is_last = step_idx + 1 == self.max_steps and not outcome.terminated
        self.turns.append(
            Turn(
                step_idx=step_idx,
                observation=observation.text,
                anchor=anchor,
                anchor_text=observation.anchor if isinstance(observation.anchor, str) else None,
                admissible_actions=tuple(observation.admissible_actions),
                prompt=prompt,
                prompt_ids_L=encoded.ids_L,
                generation=generation,
                action=parsed.action,
                action_valid=parsed.valid and outcome.action_valid,
                invalid_reason=_invalid_reason(parsed, outcome),
                reward=float(outcome.reward),
                terminated=outcome.terminated,
                truncated=outcome.truncated or (is_last and failure is None),
                info=dict(outcome.info),
                generate_s=generated_s - started_s,
                env_s=time.perf_counter() - generated_s,
                images=encoded.images,
            )
        )
        if failure is not None:
            raise failure
        self.memory.store(past_step(step_idx, observation, generation.text, parsed, outcome))
        return outcome

    def _prompt(self, step_idx: int, observation: Observation) -> str:
        try:
            return step_prompt(
                self.spec, self.memory, observation, step_idx=step_idx, max_steps=self.max_steps
            )
        except Exception as error:  # one odd observation must not end the run
            raise EnvError(f"build_prompt raised {type(error).__name__}: {error}") from error

    async def _encoded(self, prompt: str, observation: Observation) -> EncodedPrompt:
        try:
            answer = self.encode(user_content(prompt, observation))
            encoded = await answer if inspect.isawaitable(answer) else answer
        except GenerationError:
            raise
        except Exception as error:  # e.g. text that the tokenizer cannot take
            raise GenerationError(f"encode raised {type(error).__name__}: {error}") from error
        if len(encoded.ids_L) > self.max_prompt_length:
            raise PromptTooLongError(_too_long(encoded, self.max_prompt_length))
        return encoded

    async def _sample(self, prompt: EncodedPrompt, step_idx: int) -> Generation:
        try:
            generation = await self.generate(prompt, f"{self.key}_{step_idx}")
        except GenerationError:
            raise
        except Exception as error:  # the boundary to the inference servers: anything may come
            raise GenerationError(f"generate raised {type(error).__name__}: {error}") from error
        if generation.stop_reason.startswith("abort"):  # verl's spelling varies
            raise GenerationError("the server aborted the request.")
        if not generation.token_ids_L:
            raise GenerationError("the response has no tokens.")
        log_probs_L = generation.log_probs_L
        if log_probs_L is not None and len(log_probs_L) != len(generation.token_ids_L):
            raise GenerationError(
                f"a response must have one log-prob per token, got {len(log_probs_L)} for "
                f"{len(generation.token_ids_L)} tokens."
            )
        return generation

    def _parse(self, generation: Generation, observation: Observation) -> ParsedAction:
        try:
            return self.spec.project(generation.text, observation.admissible_actions)
        except Exception as error:  # project must not raise, but a response is arbitrary text
            raise EnvError(f"project raised {type(error).__name__}: {error}") from error


def _too_long(prompt: EncodedPrompt, limit: int) -> str:
    of_image, or_smaller = "", ""
    if prompt.num_image_tokens:
        of_image = f" ({prompt.num_image_tokens} of them image tokens)"
        or_smaller = ", have a smaller image drawn,"
    return (
        f"the prompt has {len(prompt.ids_L)} tokens{of_image}, at most {limit} are allowed. "
        f"Raise data.max_prompt_length{or_smaller} or lower env.history_length."
    )


def _check_outcome(outcome: StepOutcome) -> None:
    if not math.isfinite(outcome.reward):
        raise EnvError(f"a step's reward must be finite, got {outcome.reward!r}.")


def _dead_end(observation: Observation) -> StepOutcome:
    """Stands for the outcome that a failing environment did not give."""
    return StepOutcome(observation=observation, reward=0.0, terminated=False, truncated=False)


def _invalid_reason(parsed: ParsedAction, outcome: StepOutcome) -> str:
    if not parsed.valid:
        return parsed.reason
    return "" if outcome.action_valid else ENV_REFUSED
