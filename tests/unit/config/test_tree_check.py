"""Keys that nobody reads, keys that are gone, values of a wrong type."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from megatron_agent.config import Findings, compose_config
from megatron_agent.config.tree_check import NEVER_NULL
from megatron_agent.config.validation import check_config
from megatron_agent.config.values import ConfigValues

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+foo=1", "foo is not a known key, got 1"),
        ("+actor_rollout_ref.actor.lr=1", "Did you mean 'actor_rollout_ref.actor.optim.lr'"),
        ("+env.max_turns=3", "env.max_turns is not a known key, got 3"),
        ("+algorithm.gigpo.weight=3", "algorithm.gigpo.weight is not a known key"),
        ("~env.memory", "env.memory must be given, got None. Set env.memory"),
        ("~algorithm.gigpo", "algorithm.gigpo must be given"),
        ("reward=3", "^reward must be a mapping, got 3"),
        ("reward=null", "^reward must be a mapping, got None"),
        ("~data.shuffle", "^data must have every key that verl reads of it, got 'no data.shuffle'"),
        ("~trainer.save_freq", r"trainer.save_freq must be given, got None. .*default \(20\)."),
        ("~trainer.poll_interval_s", r"trainer.poll_interval_s must be given, got None"),
        ("data.seed=abc", "data.seed must be an integer, got 'abc'"),
        ("data.val_batch_size=all", "data.val_batch_size must be an integer or null, got 'all'"),
        ("trainer.total_training_steps=x", "training_steps must be an integer or null, got 'x'"),
        ("data.train_batch_size=eight", "data.train_batch_size must be an integer, got 'eight'"),
        ("trainer.balance_batch=7", "trainer.balance_batch must be true or false, got 7"),
        (
            "actor_rollout_ref.rollout.val_kwargs.temperature=hot",
            "val_kwargs.temperature must be a number, got 'hot'",
        ),
        (
            "+actor_rollout_ref.rollout.sglang_engine_mode=4",
            "sglang_engine_mode must be text, got 4",
        ),
    ],
)
def test_a_problem_names_the_key(
    problems_of: Callable[..., list[str]], override: str, message: str
) -> None:
    messages = problems_of(override)
    assert any(re.search(message, found) for found in messages), messages


@pytest.mark.parametrize(
    "key",
    [
        "data.max_prompt_length",
        "data.max_response_length",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size",
    ],
)
def test_a_wrong_value_is_reported_where_it_was_set_and_not_where_it_is_copied_to(
    problems_of: Callable[..., list[str]], key: str
) -> None:
    (message,) = problems_of(f"{key}=abc")
    assert message.startswith(f"{key} must be an integer, got 'abc'")


@pytest.mark.parametrize("override", ["+data.sampler=mine", "+cluster.nodes=3"])
def test_an_added_key_of_a_plain_section_is_a_warning(
    findings_of: Callable[..., Findings], override: str
) -> None:
    findings = findings_of(override)
    assert findings.problems == []
    assert re.search("is not a key that verl lists", findings.warnings[0])


@pytest.mark.parametrize(
    "override",
    [
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=a.b",
        "+actor_rollout_ref.rollout.engine_kwargs.sglang.log_level=info",
        "actor_rollout_ref.actor.entropy_coeff=0.01",
        "actor_rollout_ref.rollout.top_p=0.9",
        "data.gen_batch_size=4",
    ],
)
def test_what_verl_declares_is_accepted(
    findings_of: Callable[..., Findings], override: str
) -> None:
    findings = findings_of(override)
    assert (findings.problems, findings.warnings) == ([], [])


def test_a_null_is_reported_once_where_it_says_nothing(
    problems_of: Callable[..., list[str]],
) -> None:
    messages = problems_of(*(f"{key}=null" for key in NEVER_NULL))
    for key, default in NEVER_NULL.items():
        about_key = [found for found in messages if found.startswith(f"{key} ")]
        message = f"{key} must be given, got None. Leave it at its default ({default})."
        assert about_key == [message]


def test_the_defaults_named_for_a_null_are_those_of_the_files() -> None:
    values = ConfigValues.from_config(compose_config())
    for key, default in NEVER_NULL.items():
        if re.fullmatch(r"-?[\d.]+", default):
            assert values.number(key) == float(default), key
        elif default in ("true", "false"):
            assert values.get(key) is (default == "true"), key
        elif default.startswith("["):
            assert f"[{', '.join(values.get(key))}]" == default
        elif not default.startswith("the "):
            assert values.get(key) == values.get(default), key


@pytest.mark.parametrize(
    "section", ["data", "actor_rollout_ref.actor.optim", "algorithm.filter_groups"]
)
def test_a_section_that_is_null_is_one_problem(
    problems_of: Callable[..., list[str]], section: str
) -> None:
    found = [message for message in problems_of(f"{section}=null") if "must be given" in message]
    assert [message.split()[0] for message in found] == [section]


def test_a_section_that_lost_verls_defaults_is_named() -> None:
    findings = Findings()
    check_config(compose_config(["~data"], findings=findings), findings)
    found = [str(problem) for problem in findings.problems if problem.key == "data"]
    assert len(found) == 1
    assert re.search(r"no data.tokenizer, .* and \d+ more'. Do not delete with '~'", found[0])
