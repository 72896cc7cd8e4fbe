"""Hop 6: an episode becomes one training row per step.

A session always gives at least one row, so that its group keeps its size. An episode that failed
before its first step has nothing to train on; it gives one placeholder row (``placeholder=True``):
a single dummy token whose loss mask must be zero everywhere. Its return (0) counts in its group.
"""

from __future__ import annotations

from megatron_agent.types import Episode, StepSample, Turn

PLACEHOLDER_TOKEN_ID = 0
"""In every vocabulary. It is never trained on and was never sampled."""


def episode_to_samples(episode: Episode) -> list[StepSample]:
    """One row per step, in order; one placeholder row for an episode without steps.

    Example:
        >>> episode = Episode(uid="g", session_id=1, env="frozenlake", task_id="t", seed=0,
        ...     split="train", turns_T=(), success=False, failure="env_error: it died")
        >>> [(row.key, row.failed, row.placeholder) for row in episode_to_samples(episode)]
        [('g_1_0', True, True)]
    """
    if not episode.turns_T:
        return [_placeholder(episode)]
    return [_row(episode, turn) for turn in episode.turns_T]


def _row(episode: Episode, turn: Turn) -> StepSample:
    generation = turn.generation
    return StepSample(
        uid=episode.uid,
        session_id=episode.session_id,
        step_idx=turn.step_idx,
        prompt_ids_L=turn.prompt_ids_L,
        response_ids_L=generation.token_ids_L,
        log_probs_L=generation.log_probs_L,
        anchor=turn.anchor,
        step_reward=turn.reward,
        episode_return=episode.episode_return,
        episode_length=episode.num_steps,
        action_valid=turn.action_valid,
        success=episode.success,
        failed=bool(episode.failure),
        weight_version_min=generation.weight_version_min,
        weight_version_max=generation.weight_version_max,
    )


def _placeholder(episode: Episode) -> StepSample:
    return StepSample(
        uid=episode.uid,
        session_id=episode.session_id,
        step_idx=0,
        prompt_ids_L=(PLACEHOLDER_TOKEN_ID,),
        response_ids_L=(PLACEHOLDER_TOKEN_ID,),
        log_probs_L=(0.0,),
        # Unlike every other anchor, so that the row meets no step of the sessions that did start.
        anchor=f"no-turn/{episode.uid}/{episode.session_id}",
        step_reward=0.0,
        episode_return=0.0,
        episode_length=0,
        action_valid=True,  # nothing was said, so there is nothing to penalise
        success=False,
        failed=True,
        weight_version_min=None,
        weight_version_max=None,
        placeholder=True,
    )
