"""Keys that nobody reads, keys that are gone, values of a wrong type."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from megatron_agent.config import Findings

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
