"""Options that cannot work are refused when the config is made, under the key a user types."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from megatron_agent.credit import CreditConfig, HgpoOptions, SimilarityOptions
from megatron_agent.errors import ConfigError

pytestmark = pytest.mark.unit


def test_defaults_follow_the_paper() -> None:
    config = CreditConfig(gamma=0.95)
    assert (config.mode, config.episode_statistics) == ("mean_norm", "trajectory")
    assert (config.lonely_episode, config.invalid_action_penalty_mode) == ("zero", "separate")


def test_numbers_may_be_ints_or_numpy_numbers() -> None:
    assert CreditConfig(gamma=1, step_advantage_w=np.float32(0.5)).gamma == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": -0.5}, "algorithm.gamma must be a number in [0, 1], got -0.5. Use 0.95."),
        ({"gamma": 1.01}, "algorithm.gamma must be a number in [0, 1], got 1.01."),
        ({"gamma": "0.9"}, "algorithm.gamma must be a number in [0, 1], got '0.9'."),
        ({"gamma": True}, "algorithm.gamma must be a number in [0, 1], got True."),
        ({"gamma": float("nan")}, "algorithm.gamma must be a number in [0, 1], got nan."),
        (
            {"step_advantage_w": -1.0},
            "algorithm.gigpo.step_advantage_w must be a finite number >= 0, got -1.0. Use 1.0.",
        ),
        (
            {"episode_advantage_w": float("inf")},
            "algorithm.gigpo.episode_advantage_w must be a finite number >= 0, got inf.",
        ),
        (
            {"step_advantage_w": 0.0, "episode_advantage_w": 0},
            "algorithm.gigpo.step_advantage_w must not be 0 together with "
            "algorithm.gigpo.episode_advantage_w, got 0.0. Give one of the two a weight",
        ),
        (
            {"mode": "mean_std"},
            "algorithm.gigpo.mode must be one of mean_norm, mean_std_norm, got 'mean_std'. "
            "Did you mean 'mean_std_norm'?",
        ),
        (
            {"episode_statistics": 3},
            "algorithm.gigpo.episode_statistics must be one of trajectory, row, got 3. "
            "Use 'trajectory', the default.",
        ),
        (
            {"lonely_episode": "raw"},
            "algorithm.gigpo.lonely_episode must be one of zero, raw_score, got 'raw'.",
        ),
        (
            {"use_invalid_action_penalty": "yes"},
            "actor_rollout_ref.actor.use_invalid_action_penalty must be true or false, got 'yes'. "
            "Write True or False, without quotes.",
        ),
        (
            {"invalid_action_penalty_coef": -0.1},
            "actor_rollout_ref.actor.invalid_action_penalty_coef must be a finite number >= 0, got "
            "-0.1. Use 0.1; the penalty is subtracted, so it has no minus sign.",
        ),
        (
            {"invalid_action_penalty_mode": "seperate"},
            "actor_rollout_ref.actor.invalid_action_penalty_mode must be one of separate, "
            "score, step_return, both, got 'seperate'. Did you mean 'separate'?",
        ),
        (
            {"invalid_action_penalty_reach": "earlier"},
            "actor_rollout_ref.actor.invalid_action_penalty_reach must be one of own_step, "
            "earlier_steps, got 'earlier'. Did you mean 'earlier_steps'?",
        ),
        ({"lam": 1.5}, "algorithm.lam must be a number in [0, 1], got 1.5. Use 1.0."),
        (
            {"repeated_states": "once"},
            "algorithm.gigpo.repeated_states must be one of every_visit, first_visit, got 'once'.",
        ),
        (
            {"whiten_advantages": 1},
            "algorithm.whiten_advantages must be true or false, got 1. Write True or False",
        ),
        (
            {"normalize_by_length": "no"},
            "algorithm.episode_reward.normalize_by_length must be true or false, got 'no'.",
        ),
        ({"gamma": 10**400}, "algorithm.gamma must be a number in [0, 1], got 1000"),
        ({"step_advantage_w": 10**400}, "step_advantage_w must be a finite number >= 0, got 1000"),
        ({"mode": np.array(["mean_norm", "x"])}, "mode must be one of mean_norm, mean_std_norm, "),
        (
            {"similarity": {"threshold": 0.9}},
            "algorithm.gigpo.similarity must be SimilarityOptions or None, got {'threshold': 0.9}. "
            "Use SimilarityOptions(threshold=0.95).",
        ),
        ({"similarity": True}, "similarity must be SimilarityOptions or None, got True."),
        ({"hgpo": None}, "algorithm.hgpo must be HgpoOptions, got None. Use HgpoOptions()."),
        ({"epsilon": 0.0}, "algorithm.gigpo.epsilon must be above 0, got 0.0. Use 1e-6."),
        ({"epsilon": -1}, "algorithm.gigpo.epsilon must be a finite number >= 0, got -1."),
    ],
)
def test_a_bad_option_names_key_rule_value_and_remedy(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        CreditConfig(**({"gamma": 0.95} | options))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            HgpoOptions,
            {"history_length": -1},
            "algorithm.hgpo.history_length must be an integer >= 0, got -1. Use 2.",
        ),
        (HgpoOptions, {"history_length": 1.5}, "hgpo.history_length must be an integer >= 0, got"),
        (HgpoOptions, {"history_length": True}, "hgpo.history_length must be an integer >= 0, got"),
        (
            HgpoOptions,
            {"length_weight_alpha": -1},
            "algorithm.hgpo.length_weight_alpha must be a number in [0, 16], got -1. Use 1.0.",
        ),
        (HgpoOptions, {"base_group": 1}, "algorithm.hgpo.base_group must be true or false, got 1."),
        (
            SimilarityOptions,
            {"threshold": 0},
            "algorithm.gigpo.similarity_thresh must be above 0, got 0. Use 0.95.",
        ),
        (
            SimilarityOptions,
            {"threshold": 1.1},
            "algorithm.gigpo.similarity_thresh must be a number in [0, 1], got 1.1. Use 0.95.",
        ),
        (
            SimilarityOptions,
            {"measure": "tokens"},
            "algorithm.gigpo.similarity_measure must be one of character, token, got 'tokens'. "
            "Did you mean 'token'?",
        ),
        (
            SimilarityOptions,
            {"keep_numbers": None},
            "algorithm.gigpo.similarity_keep_numbers must be true or false, got None.",
        ),
        (
            SimilarityOptions,
            {"max_comparisons": 0},
            "algorithm.gigpo.similarity_max_comparisons must be an integer >= 1, got 0. "
            "Use 1000000.",
        ),
        (
            SimilarityOptions,
            {"max_comparisons": 1e6},
            "similarity_max_comparisons must be an integer >= 1, got 1000000.0.",
        ),
    ],
)
def test_a_bad_option_of_one_part_is_refused_likewise(
    kind: type[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        kind(**options)
