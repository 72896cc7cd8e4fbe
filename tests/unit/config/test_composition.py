"""The command line: overrides that apply, and a message for each that does not."""

from __future__ import annotations

import re

import pytest

from megatron_agent.config import ConfigProblemsError, Findings, compose_config
from megatron_agent.config.overrides import DEFAULT_ROOT
from megatron_agent.errors import ConfigError

pytestmark = pytest.mark.unit


def messages_of(*overrides: str) -> dict[str, str]:
    findings = Findings()
    compose_config(overrides, findings=findings)
    return {problem.key: str(problem) for problem in findings.problems}


def test_unknown_keys_are_named_with_the_nearest_known_one() -> None:
    messages = messages_of(
        "gamma=0.9", "data.train_batchsize=4", "env.max_step=4", "qqqq.zzzz=4", "~env.sed"
    )
    assert messages["gamma"].endswith("got 0.9. Did you mean 'algorithm.gamma'?")
    assert messages["data.train_batchsize"].endswith("Did you mean 'data.train_batch_size'?")
    assert messages["env.max_step"].endswith("Did you mean 'env.max_steps'?")
    assert messages["qqqq.zzzz"].endswith("'megatron-agent show' prints every key.")
    assert messages["env.sed"].endswith("Did you mean 'env.seed'?")


def test_text_that_is_no_override_is_named() -> None:
    messages = messages_of("gamma", "trainer.nnodes=1,2")
    assert messages["override"].startswith("override must be key=value, got 'gamma'.")
    assert messages["trainer.nnodes"].startswith("trainer.nnodes must be a single value")


def test_an_unknown_file_of_a_group_is_named() -> None:
    messages = messages_of("env=frozenlak", "cluster=gpu9000", "model=null")
    assert re.search("env must be one of .*frozenlake.* got 'frozenlak'", messages["env"])
    assert "Did you mean 'frozenlake'? For an environment without a file: env=" in messages["env"]
    assert re.search("cluster must be one of .*cpu.* got 'gpu9000'", messages["cluster"])
    assert re.search("model must be one of .*tiny.* got None", messages["model"])


def test_an_override_that_does_not_fit_carries_the_reason() -> None:
    messages = messages_of("~env.seed=5", "env.max_steps=3")
    assert list(messages) == ["env.seed"]
    assert re.search(
        r"env.seed must apply \(Could not delete.*\), got '~env.seed=5'", messages["env.seed"]
    )


@pytest.mark.parametrize("line", ["algorithm=null", "data=3", "data=[1]", "algorithm=nothing"])
def test_a_file_of_verls_cannot_be_replaced_by_a_value(line: str) -> None:
    key = line.partition("=")[0]
    messages = messages_of(line, "env.max_steps=3")
    assert list(messages) == [key]
    assert re.search(rf"^{key} must apply \(.+\), got '{re.escape(line)}'", messages[key])


def test_an_interpolation_that_points_nowhere_is_named() -> None:
    with pytest.raises(ConfigError, match=r"must resolve \(.*no\.such.*Name an existing key"):
        compose_config(["data.seed=${no.such}"])


def test_without_a_collector_problems_raise() -> None:
    with pytest.raises(ConfigProblemsError, match="gamma is not a known key"):
        compose_config(["gamma=0.9"])


def test_an_unknown_root_names_the_nearest() -> None:
    with pytest.raises(ConfigProblemsError, match=r"must be one of gigpo, grpo.*'grpo'"):
        compose_config(config_name="grp")


def test_overrides_that_cannot_apply_do_not_hide_each_other() -> None:
    findings = Findings()
    config = compose_config(["gamma=1", "env.max_steps=7", "~env.seed=5"], findings=findings)
    assert [problem.key for problem in findings.problems] == ["gamma", "env.seed"]
    assert config.env.max_steps == 7


def test_free_form_mappings_take_new_keys_without_a_plus() -> None:
    config = compose_config(["env.options.p=0.9", "ray_kwargs.ray_init.address=local"])
    assert config.env.options == {"size": 4, "is_slippery": False, "p": 0.9}
    assert config.ray_kwargs.ray_init.address == "local"


def test_an_experiment_gives_way_to_the_command_line() -> None:
    config = compose_config(["experiment=demo", "trainer.total_training_steps=3"])
    assert (config.run.name, config.trainer.total_training_steps) == ("demo", 3)


@pytest.mark.parametrize("line", ["experiment=null", "+experiment=null"])
def test_no_experiment_may_be_said(line: str) -> None:
    assert compose_config([line]) == compose_config([])


def test_the_roots_differ_in_credit() -> None:
    estimators = [
        compose_config(config_name=root).algorithm.adv_estimator for root in ("gigpo", "grpo")
    ]
    assert estimators == ["gigpo", "grpo"]
    assert DEFAULT_ROOT == "gigpo"


def test_the_group_size_is_one_number() -> None:
    config = compose_config(["env.rollout.n=5"])
    assert config.actor_rollout_ref.rollout.n == 5


def test_the_composed_configuration_holds_no_interpolation() -> None:
    from omegaconf import OmegaConf

    assert "${" not in OmegaConf.to_yaml(compose_config())
