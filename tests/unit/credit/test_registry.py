"""Credit methods by name: built in, registered, or from another package's entry point."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

from megatron_agent.credit import (
    CreditConfig,
    CreditResult,
    CreditRows,
    MethodFacts,
    compute_credit,
    credit_facts,
    credit_method,
    credit_names,
    credit_needs,
    register_credit,
    registry,
)
from megatron_agent.errors import CreditError, RegistryError

pytestmark = pytest.mark.unit


def constant(rows: CreditRows, config: CreditConfig) -> CreditResult:
    """A method for tests: the advantage is the row's position among the sorted rows."""
    zero_N = np.zeros(rows.num_rows)
    return CreditResult(np.arange(rows.num_rows, dtype=float), {}, zero_N, zero_N, zero_N, zero_N)


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    monkeypatch.setattr(registry, "_facts", dict(registry._facts))
    yield


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that installed packages offer these entry points."""

    def offer(*points: tuple[str, str]) -> None:
        found = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in points]
        monkeypatch.setattr(registry, "entry_points", lambda *, group: found)

    return offer


BUILT_IN = (
    "gae",
    "gigpo",
    "grpo",
    "hgpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "step_reinforce",
)


def test_built_in_methods_are_there() -> None:
    assert credit_names() == BUILT_IN
    for name in BUILT_IN:
        assert credit_method(name).__name__ == name


def test_methods_say_what_they_need() -> None:
    needs = {name: set(credit_needs(name)) for name in BUILT_IN if credit_needs(name)}
    assert needs == {"gae": {"value"}, "gigpo": {"anchor"}, "hgpo": {"anchor"}}


def test_only_columns_that_a_method_needs_must_be_there() -> None:
    rows = CreditRows.from_keys(
        ["g_0_0", "g_1_0"], step_reward_N=[0, 1], episode_return_N=[0, 1], action_valid_N=[1, 1]
    )
    for name in BUILT_IN:
        if not credit_needs(name):
            assert compute_credit(name, rows, CreditConfig(gamma=0.9)).advantage_N.shape == (2,)
    message = (
        "credit method 'hgpo' needs anchor_N, one value per row, got None. Let the environment "
        "return an anchor and digest it with anchor_digest."
    )
    with pytest.raises(CreditError, match=re.escape(message)):
        compute_credit("hgpo", rows, CreditConfig(gamma=0.9))
    register_credit("entropic", needs=("entropy",), levels=("step",))(constant)
    message = "'entropic' needs entropy_N, one value per row, got None. Hand it over with the rows."
    with pytest.raises(CreditError, match=re.escape(message)):
        compute_credit("entropic", rows, CreditConfig(gamma=0.9))


def test_a_method_that_says_nothing_gets_anchors_and_may_score_anything(
    offer: Callable[..., None],
) -> None:
    register_credit("plain")(constant)
    offer(("other", "megatron_agent.credit.grpo:grpo"))
    for name in ("plain", "other"):
        assert credit_facts(name) == MethodFacts(needs=("anchor",), levels=("episode", "step"))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"needs": ("values",)},
            "needs of credit method 'bad' must be a tuple of anchor, anchor_text, failed, value, "
            "log_prob, entropy, got ('values',). Correct its register_credit(...).",
        ),
        ({"needs": "value"}, "got 'value'. Correct its register_credit(...)."),
        ({"levels": ("turn",)}, "levels of credit method 'bad' must be a tuple of episode, step,"),
    ],
)
def test_facts_that_cannot_be_are_refused(facts: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=re.escape(message)):
        register_credit("bad", **facts)


def test_an_unknown_name_lists_what_exists_and_the_nearest() -> None:
    message = "algorithm.adv_estimator must be a credit method, one of "
    message += f"{', '.join(BUILT_IN)}, got 'gigp'. "
    with pytest.raises(RegistryError, match=re.escape(message + "Did you mean 'gigpo'?")):
        credit_method("gigp")
    with pytest.raises(RegistryError, match=r"step_reinforce, got 'zzz'\.$"):
        credit_method("zzz")


@pytest.mark.parametrize("name", [None, ["gigpo"]])
def test_a_name_that_is_no_text_is_unknown(name: Any, golden_rows: CreditRows) -> None:
    message = re.escape(f"must be a credit method, one of {', '.join(BUILT_IN)}, got {name!r}.")
    with pytest.raises(RegistryError, match=message):
        compute_credit(name, golden_rows, CreditConfig(gamma=0.95))


def test_a_name_is_registered_once() -> None:
    message = "'gigpo' must be registered once, got .*constant while megatron_agent.credit.gigpo.gi"
    with pytest.raises(RegistryError, match=message):
        register_credit("gigpo")(constant)


def test_a_registered_method_sees_sorted_rows_and_answers_in_the_callers_order(
    make_rows: Callable[..., CreditRows],
) -> None:
    register_credit("position")(constant)
    sessions = {"b": [(["s", "s"], [0, 0])], "a": [(["s"], [0]), (["s"], [0])]}
    rows = make_rows(sessions, order=[1, 3, 0, 2])  # b_0_1, a_1_0, b_0_0, a_0_0
    credit = compute_credit("position", rows, CreditConfig(gamma=1.0))
    assert credit.advantage_N.tolist() == [3.0, 1.0, 2.0, 0.0]


def test_an_entry_point_is_loaded_when_its_name_is_asked_for(
    offer: Callable[..., None], golden_rows: CreditRows
) -> None:
    offer(("other", "megatron_agent.credit.grpo:grpo"), ("broken", "no_such_module:method"))
    assert credit_names() == tuple(sorted([*BUILT_IN, "broken", "other"]))
    ours, theirs = (
        compute_credit(name, golden_rows, CreditConfig(gamma=0.95)) for name in ("grpo", "other")
    )
    np.testing.assert_array_equal(ours.advantage_N, theirs.advantage_N)


def test_entry_points_are_not_looked_at_for_a_known_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "entry_points", None)
    credit_method("gigpo")


def test_an_entry_point_that_does_not_load_says_which(offer: Callable[..., None]) -> None:
    offer(("broken", "no_such_module:method"))
    message = "'broken' must load from its entry point no_such_module:method, got ModuleNotFoundErr"
    with pytest.raises(RegistryError, match=message) as caught:
        credit_method("broken")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_entry_point_must_be_a_function(offer: Callable[..., None]) -> None:
    offer(("data", "math:pi"))
    with pytest.raises(RegistryError, match="must be a function, got float from entry point math"):
        credit_method("data")


def test_two_packages_with_one_name_are_refused_but_one_listed_twice_is_not(
    offer: Callable[..., None],
) -> None:
    grpo = ("twin", "megatron_agent.credit.grpo:grpo")
    offer(grpo, ("twin", "math:floor"))
    with pytest.raises(RegistryError, match="'twin' must come from one package, got entry points "):
        credit_method("twin")
    offer(grpo, grpo)
    assert credit_method("twin") is credit_method("grpo")


@pytest.mark.parametrize(
    ("nonsense", "message"),
    [
        (
            {"advantage_N": np.zeros(3)},
            r"'bad' must give one advantage per row, shape \(10,\), got shape \(3,\)",
        ),
        ({"return_N": np.zeros(3)}, r"must give one return per row, shape \(10,\), got shape"),
        ({"advantage_N": [0.0] * 10}, r"one advantage per row, shape \(10,\), got list. Fix the m"),
        ({"episode_advantage_N": np.zeros(3)}, r"one episode advantage per row, .* got shape \(3,"),
        ({"penalty_N": None}, r"one penalty per row, .* got NoneType. Fix the method"),
        ({"metrics": {"credit/x": None}}, "must give a number as credit/x, got None. Fix the me"),
        (
            {"advantage_N": np.full(10, np.nan)},
            "'bad' must give finite numbers, got advantage of nan at group 'g', session 0, step 0",
        ),
        ({"return_N": np.full(10, np.inf)}, "finite numbers, got return of inf at group 'g'"),
        ({"metrics": {"credit/x": np.nan}}, "finite numbers, got credit/x of nan. The largest"),
    ],
)
def test_a_method_that_returns_nonsense_is_named(
    golden_rows: CreditRows, nonsense: dict[str, Any], message: str
) -> None:
    @register_credit("bad")
    def bad(rows: CreditRows, config: CreditConfig) -> CreditResult:
        return dataclasses.replace(constant(rows, config), **nonsense)

    with pytest.raises(CreditError, match=message):
        compute_credit("bad", golden_rows, CreditConfig(gamma=0.95))


def test_a_method_that_returns_no_result_is_named(golden_rows: CreditRows) -> None:
    register_credit("silent")(lambda rows, config: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(CreditError, match="'silent' must return a CreditResult, got NoneType"):
        compute_credit("silent", golden_rows, CreditConfig(gamma=0.95))


def test_credit_imports_nothing_heavy() -> None:
    code = (
        "import sys, megatron_agent.credit, megatron_agent.anchors;"
        "heavy = {'torch', 'verl', 'ray', 'sglang', 'megatron', 'pandas'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
