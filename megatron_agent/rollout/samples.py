"""Hop 6: an episode becomes one training row per step.

An episode that failed before its first step (its reset crashed, its first prompt was too long)
gives no rows, as nothing was said that could be trained on. It still belongs to its group: whoever
needs a row per session puts in one whose loss mask is zero everywhere.
"""

from __future__ import annotations

from megatron_agent.types import Episode, StepSample, Turn


def episode_to_samples(episode: Episode) -> list[StepSample]:
    """One row per step, in order; none for an episode without steps.

    Every row carries the facts of its whole episode too (return, length, success, failed), so that
    rows may be shuffled and split.

    Example:
        >>> episode = Episode(uid="g", session_id=1, env="frozenlake", task_id="t", seed=0,
        ...     split="train", turns_T=(), success=False, failure="env_error: it died")
        >>> episode_to_samples(episode)
        []
    """
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
        images=turn.images,
    )
