"""Rewards that do not come from the environment: a user's own function, punishment for length.

The function's signature is that of verl's custom reward functions, called once per episode::

    def compute_score(data_source, solution_str, ground_truth, extra_info):
        steps = extra_info["episode"]["steps"]
        return 1.0 - 0.01 * len(steps) if extra_info["episode"]["success"] else 0.0

``solution_str`` is the last response. ``extra_info`` has the fields of the dataset row and, new
here, ``episode`` (`episode_facts`). The answer is the score of the episode, or a mapping with
``score``, ``step_rewards`` or both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from megatron_agent.errors import RewardError
from megatron_agent.types import Episode

_WHERE = "reward.custom_reward_function"


def episode_facts(episode: Episode) -> dict[str, Any]:
    """What a reward function sees of an episode, as plain values.

    Returns:
        ``env``, ``task_id``, ``seed``, ``split``, ``success``, ``failure``, ``env_return``, and
        ``steps``: for each step ``observation``, ``prompt``, ``response``, ``action``,
        ``action_valid``, ``reward`` (the environment's), ``terminated``, ``truncated``, ``info``.
    """
    return {
        "env": episode.env,
        "task_id": episode.task_id,
        "seed": episode.seed,
        "split": episode.split,
        "success": episode.success,
        "failure": episode.failure,
        "env_return": episode.episode_return,
        "steps": [
            {
                "observation": turn.observation,
                "prompt": turn.prompt,
                "response": turn.generation.text,
                "action": turn.action,
                "action_valid": turn.action_valid,
                "reward": turn.reward,
                "terminated": turn.terminated,
                "truncated": turn.truncated,
                "info": dict(turn.info),
            }
            for turn in episode.turns_T
        ],
    }


def rescored(episode: Episode, answer: object) -> Episode:
    """The episode with the rewards that a reward function gave it.

    With a score alone the steps keep the environment's rewards and the last step gets the
    difference, so that the return is the score. ``step_rewards`` replace the environment's rewards.
    The environment's reward of a step stays in its ``info["env_reward"]``; further keys of the
    answer go to the last step's ``info``. An episode without steps stays as it is.

    Args:
        episode: as it was played.
        answer: a number, or a mapping with ``score``, ``step_rewards`` (one number per step) or
            both, which must agree. True and false are 1 and 0; scalars and arrays of numpy or
            torch count as the numbers in them.

    Raises:
        RewardError: anything else; the message says what was found.
    """
    turns_T = episode.turns_T
    if not turns_T:
        return episode
    reward_T, extra = _rewards(answer, [turn.reward for turn in turns_T])
    changed = [
        dataclasses.replace(turn, reward=reward, info={**turn.info, "env_reward": turn.reward})
        for turn, reward in zip(turns_T, reward_T, strict=True)
    ]
    last = changed[-1]
    changed[-1] = dataclasses.replace(last, info={**last.info, **extra})
    return dataclasses.replace(episode, turns_T=tuple(changed))


def with_overlong_penalty(
    episode: Episode, *, max_length: int, buffer_length: int, coef: float
) -> Episode:
    """The episode with soft over-long punishment (DAPO, arXiv 2503.14476, Eq. 13) on each step.

    A response of up to ``max_length - buffer_length`` tokens costs nothing; from there the step's
    reward falls linearly, by ``coef`` at ``max_length``. In DAPO a response is the whole sample;
    here each step has its own, so each step pays for its own.

    Args:
        episode: rewarded by the environment or by a reward function.
        max_length: tokens a response may have (``data.max_response_length``).
        buffer_length: tokens over which the punishment grows, in [1, max_length].
        coef: full size, in units of the reward.

    Example:
        With 100 tokens, a buffer of 20 and coef 1, 90 tokens are half way into the buffer: -0.5.
    """
    free_length = max_length - buffer_length
    return dataclasses.replace(
        episode,
        turns_T=tuple(
            dataclasses.replace(
                turn,
                reward=turn.reward - coef * over / buffer_length,
                info={"env_reward": turn.reward, **turn.info},
            )
            if (over := len(turn.generation.token_ids_L) - free_length) > 0
            else turn
            for turn in episode.turns_T
        ),
    )


def _rewards(answer: object, env_reward_T: Sequence[float]) -> tuple[list[float], dict[str, Any]]:
    """One reward per step, and what else the answer holds."""
    if not isinstance(answer, Mapping):
        score = _number("a finite number or a mapping with score or step_rewards", answer)
        return _with_return(score, env_reward_T), {}
    extra = {
        str(key): value for key, value in answer.items() if key not in ("score", "step_rewards")
    }
    if "step_rewards" not in answer:
        score = _number("a finite number as score", answer.get("score"))
        return _with_return(score, env_reward_T), extra
    given = answer["step_rewards"]
    given = given.tolist() if hasattr(given, "tolist") else given  # an array
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != len(env_reward_T):
        raise RewardError(
            f"{_WHERE} must return step_rewards with one number for each of the "
            f"{len(env_reward_T)} steps, got {given!r}. Follow extra_info['episode']['steps']."
        )
    reward_T = [_number("finite numbers as step_rewards", reward) for reward in given]
    if "score" in answer:
        score = _number("a finite number as score", answer["score"])
        if not math.isclose(score, sum(reward_T), rel_tol=1e-6, abs_tol=1e-6):
            raise RewardError(
                f"{_WHERE} must return step_rewards that add up to score ({score:g}), got "
                f"{sum(reward_T):g}. Leave one of the two out."
            )
    return reward_T, extra


def _with_return(score: float, env_reward_T: Sequence[float]) -> list[float]:
    *earlier, _ = env_reward_T
    return [*earlier, score - sum(earlier)]


def _number(rule: str, value: object) -> float:
    """A number, true (1) or false (0), plain or as an array of one value."""
    try:
        plain = value.item() if hasattr(value, "item") else value
        number = float(plain) if isinstance(plain, Real) else math.nan
    except (OverflowError, ValueError, RuntimeError):  # beyond the floats, or of several values
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"{_WHERE} must return {rule}, got {value!r}. Correct the function.")
    return number
