"""A user's reward function: what it sees, and what its answer does to the episode."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from megatron_agent.errors import RewardError
from megatron_agent.rollout.rescoring import episode_facts, rescored, with_overlong_penalty
from megatron_agent.types import Episode, Generation, Turn

pytestmark = pytest.mark.unit


def episode(*rewards: float) -> Episode:
    turns = tuple(
        Turn(
            step_idx=step_idx,
            observation=f"room {step_idx}",
            anchor="ab",
            anchor_text=None,
            admissible_actions=("on",),
            prompt="go",
            prompt_ids_L=(1,),
            generation=Generation(token_ids_L=(2,), log_probs_L=None, text=f"<on {step_idx}>"),
            action="on",
            action_valid=True,
            invalid_reason="",
            reward=reward,
            terminated=step_idx + 1 == len(rewards),
            truncated=False,
            info={"success": True},
        )
        for step_idx, reward in enumerate(rewards)
    )
    return Episode(
        uid="g", session_id=0, env="e", task_id="t", seed=3, split="train", turns_T=turns,
        success=True,
    )  # fmt: skip


def rewards_of(played: Episode) -> list[float]:
    return [turn.reward for turn in played.turns_T]


def test_the_function_sees_steps_actions_and_infos():
    facts = episode_facts(episode(0.0, 1.0))
    assert (facts["task_id"], facts["success"], facts["env_return"]) == ("t", True, 1.0)
    first = facts["steps"][0]
    assert (first["observation"], first["response"], first["action"]) == ("room 0", "<on 0>", "on")
    assert (first["info"], first["reward"]) == ({"success": True}, 0.0)


def test_a_score_becomes_the_return_by_the_last_step():
    changed = rescored(episode(0.25, 1.0), 0.5)
    assert rewards_of(changed) == [0.25, 0.25]
    assert changed.episode_return == 0.5
    assert [turn.info["env_reward"] for turn in changed.turns_T] == [0.25, 1.0]


@pytest.mark.parametrize(
    ("answer", "total"),
    [
        (True, 1.0),
        (False, 0.0),
        (np.True_, 1.0),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.array(0.5), 0.5),
        ({"score": np.float32(0.5), "acc": np.True_}, 0.5),
        ({"step_rewards": np.array([0.25, 0.5], np.float32)}, 0.75),
        ({"step_rewards": (np.float32(0.25), True)}, 1.25),
    ],
)
def test_numbers_may_be_flags_or_of_numpy(answer: Any, total: float):
    changed = rescored(episode(0.25, 1.0), answer)
    assert changed.episode_return == total
    assert {type(reward) for reward in rewards_of(changed)} == {float}


def test_step_rewards_replace_those_of_the_environment():
    changed = rescored(episode(0.0, 1.0), {"step_rewards": [2.0, 3.0], "score": 5.0, "judge": "ok"})
    assert rewards_of(changed) == [2.0, 3.0]
    assert changed.turns_T[-1].info["judge"] == "ok"


def test_an_episode_without_steps_stays_as_it_is():
    assert rescored(episode(), 7.0) == episode()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "must return a finite number or a mapping .* got None"),
        (float("nan"), "must return a finite number or a mapping .* got nan"),
        (10**400, "must return a finite number or a mapping .* got 1000"),
        (np.array([0.5, 0.5]), r"a finite number or a mapping .* got array\(\[0.5, 0.5\]\)"),
        ({"step_rewards": np.zeros((2, 1))}, r"finite numbers as step_rewards, got \[0.0\]"),
        ({"step_rewards": np.float64(1)}, "one number for each of the 2 steps, got 1.0"),
        ({"acc": 1.0}, "must return a finite number as score, got None"),
        ({"step_rewards": [1.0]}, r"one number for each of the 2 steps, got \[1.0\]"),
        ({"step_rewards": "12"}, "one number for each of the 2 steps, got '12'"),
        ({"step_rewards": [1.0, "a"]}, "finite numbers as step_rewards, got 'a'"),
        ({"step_rewards": [1.0, 1.0], "score": 3}, r"add up to score \(3\), got 2"),
    ],
)
def test_an_answer_that_is_no_reward_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        rescored(episode(0.0, 1.0), answer)


def test_only_what_reaches_into_the_buffer_costs() -> None:
    played = episode(0.0, 1.0, 0.0)
    lengths = (80, 90, 100)
    turns = [
        dataclasses.replace(
            turn, generation=Generation(token_ids_L=(1,) * length, log_probs_L=None, text="")
        )
        for turn, length in zip(played.turns_T, lengths, strict=True)
    ]
    changed = with_overlong_penalty(
        dataclasses.replace(played, turns_T=tuple(turns)),
        max_length=100,
        buffer_length=20,
        coef=1.0,
    )
    assert rewards_of(changed) == [0.0, 0.5, -1.0]
    assert "env_reward" not in changed.turns_T[0].info
    assert changed.turns_T[1].info["env_reward"] == 1.0
