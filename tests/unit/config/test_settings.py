"""Our typed settings, the message of several problems, and the split for verl."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from megatron_agent.config import AgentSettings, ConfigProblemsError, Findings, compose_config
from megatron_agent.config.fields import Rule, has_type, read_settings, ruled, type_words
from megatron_agent.config.findings import nearest_key
from megatron_agent.config.split import split_config
from megatron_agent.credit import CreditConfig, HgpoOptions, SimilarityOptions
from megatron_agent.errors import ConfigError

pytestmark = pytest.mark.unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    """Nested settings."""

    size: int = ruled(at_least=1, at_most=3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    """Settings with each kind of field."""

    name: str | None
    rate: float = ruled(above=0)
    inner: Inner


def test_a_section_is_read_into_its_class() -> None:
    findings = Findings()
    section = {"name": None, "rate": 1, "inner": {"size": 2}}
    assert read_settings(Outer, section, "o", findings) == Outer(
        name=None, rate=1.0, inner=Inner(size=2)
    )
    assert findings.problems == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "o.name must be text or null, got 3. Set o.name to text or null."),
        ({"rate": 0}, "o.rate must be > 0, got 0. Change the value."),
        ({"rate": True}, "o.rate must be a number, got True. Set o.rate to a number."),
        ({"inner": {"size": 4}}, "o.inner.size must be in [1, 3], got 4. Change the value."),
        ({"inner": 1}, "o.inner must be a mapping, got 1. Set the keys below o.inner."),
        ({"inner": {}}, "o.inner.size must be given, got None. Set o.inner.size=... ."),
        ({"nane": 1}, "o.nane is not a known key, got 1. Did you mean 'o.name'?"),
        ({"xyzzy": 1}, "o.xyzzy is not a known key, got 1. Known keys of o: inner, name, rate."),
    ],
)
def test_a_broken_field_gives_one_message(change: dict[str, Any], message: str) -> None:
    findings = Findings()
    section = {"name": "a", "rate": 1.0, "inner": {"size": 1}} | change
    assert read_settings(Outer, section, "o", findings) is None
    assert [str(problem) for problem in findings.problems] == [message]


@pytest.mark.parametrize(
    ("rule", "value", "words"),
    [
        (Rule(at_most=2), 3, "must be <= 2"),
        (Rule(above=0, at_most=1), 0, "must be in (0, 1]"),
        (Rule(at_least=0, at_most=1), float("nan"), "must be in [0, 1]"),
        (Rule(one_of=("a", "b")), "c", "must be one of a, b"),
        (Rule(at_least=0), 0, None),
        (Rule(at_least=1), "text", None),
    ],
)
def test_rules_in_words(rule: Rule, value: object, words: str | None) -> None:
    assert rule.broken_by(value) == words


def test_types_in_words() -> None:
    assert type_words(float) == "a number"
    assert type_words(dict[str, int] | None) == "a mapping or null"
    assert has_type({"a": 1}, dict[str, int])
    assert not has_type(True, float)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("gamma", "algorithm.gamma"),
        ("trainer.gamma", "algorithm.gamma"),
        ("algoritm.gama", "algorithm.gamma"),
        ("x.y.gama", "algorithm.gamma"),
        ("zzz", None),
    ],
)
def test_the_nearest_key(key: str, nearest: str | None) -> None:
    assert nearest_key(key, ["algorithm.gamma", "trainer.nnodes"]) == nearest


def test_problems_survive_pickling() -> None:
    problems = [
        ConfigError("a", "must be 1", 2, "Use 1."),
        ConfigError("b", "must be 2", 1, "Use 2."),
    ]
    error = ConfigProblemsError(problems)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.key, len(copy.problems)) == ("a", 2)
    assert str(error).splitlines() == [
        "The configuration has 2 problems:",
        "  1. a must be 1, got 2. Use 1.",
        "  2. b must be 2, got 1. Use 2.",
    ]


def test_splitting_moves_the_penalty_and_keeps_the_rest() -> None:
    config = compose_config(["actor_rollout_ref.actor.invalid_action_penalty_coef=0.3"])
    verl_config, settings = split_config(config)
    assert verl_config.algorithm.invalid_action_penalty == {
        "enabled": True, "coef": 0.3, "mode": "separate", "reach": "own_step",
    }  # fmt: skip
    assert "use_invalid_action_penalty" not in verl_config.actor_rollout_ref.actor
    assert "use_invalid_action_penalty" in config.actor_rollout_ref.actor
    assert verl_config.env == config.env
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert AgentSettings.from_config(verl_config) == settings


def test_reading_settings_of_a_broken_configuration_raises() -> None:
    config = compose_config(["env.max_steps=0"])
    with pytest.raises(ConfigProblemsError, match=r"env\.max_steps must be >= 1, got 0"):
        AgentSettings.from_config(config)


@pytest.mark.parametrize(
    ("method", "mode"), [("gigpo", "mean_norm"), ("grpo", "mean_std_norm"), (None, "mean_norm")]
)
def test_grpo_keeps_verls_own_switch_for_the_deviation(method: str | None, mode: str) -> None:
    settings = AgentSettings.from_config(compose_config())
    assert settings.credit_config(method).mode == mode


def test_hgpo_has_a_mode_of_its_own_and_the_history_of_the_prompts() -> None:
    overrides = ["credit=hgpo", "algorithm.hgpo.mode=mean_std_norm", "env.history_length=4"]
    config = AgentSettings.from_config(compose_config(overrides)).credit_config()
    assert config.mode == "mean_std_norm"
    assert config.hgpo == HgpoOptions(history_length=4, length_weight_alpha=1.0, base_group=False)


def test_all_credit_options_arrive() -> None:
    overrides = [
        "algorithm.lam=0.9",
        "algorithm.whiten_advantages=false",
        "algorithm.episode_reward.normalize_by_length=true",
        "algorithm.gigpo.repeated_states=first_visit",
        "algorithm.gigpo.enable_similarity=true",
        "algorithm.gigpo.similarity_thresh=0.8",
        "algorithm.gigpo.similarity_measure=token",
        "algorithm.gigpo.similarity_keep_numbers=false",
        "algorithm.gigpo.similarity_max_comparisons=5000",
        "actor_rollout_ref.actor.invalid_action_penalty_mode=both",
        "actor_rollout_ref.actor.invalid_action_penalty_reach=earlier_steps",
    ]
    config = AgentSettings.from_config(compose_config(overrides)).credit_config()
    assert config == CreditConfig(
        gamma=0.95,
        lam=0.9,
        whiten_advantages=False,
        normalize_by_length=True,
        repeated_states="first_visit",
        similarity=SimilarityOptions(
            threshold=0.8, measure="token", keep_numbers=False, max_comparisons=5000
        ),
        invalid_action_penalty_mode="both",
        invalid_action_penalty_reach="earlier_steps",
    )


def test_the_files_keep_the_defaults_of_the_code() -> None:
    config = AgentSettings.from_config(compose_config()).credit_config()
    assert config == CreditConfig(gamma=0.95)
    with_similarity = compose_config(["algorithm.gigpo.enable_similarity=true"])
    config = AgentSettings.from_config(with_similarity).credit_config()
    assert config == CreditConfig(gamma=0.95, similarity=SimilarityOptions())


def test_gae_comes_with_a_critic() -> None:
    config = compose_config(["credit=gae"])
    assert config.critic.enable is True
    assert (config.algorithm.adv_estimator, config.algorithm.lam) == ("gae", 0.95)
