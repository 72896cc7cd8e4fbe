"""Faults planted into FrozenLake, each of which the check must find."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.anchor_types import unfit_part
from envs.base import Observation, StepOutcome
from envs.check_report import CheckReport, run_check
from envs.checker import check_corpus, check_determinism, check_expert
from envs.data import EnvDataError
from envs.frozenlake.env import FrozenLakeEnv
from envs.measure import measure
from envs.nonsense_check import check_nonsense
from envs.playback import EnvContractError
from envs.registry import EnvSpec, load_env
from envs.walks import Walk, remarks
from megatron_agent.anchors import anchor_digest
from megatron_agent.errors import AnchorError

pytestmark = pytest.mark.unit

LAKE = load_env("frozenlake")


def spec_with(**changes: Any) -> EnvSpec:
    return dataclasses.replace(LAKE, **changes)


def report_of(make: type[FrozenLakeEnv], **arguments: Any) -> CheckReport:
    return run_check(spec_with(make=make), num_members=2, num_tasks=1, num_resets=4, **arguments)


class Changed(FrozenLakeEnv):
    """FrozenLake with something changed in what a step or an observation tells."""

    def step(self, action: str) -> StepOutcome:
        return self.outcome(super().step(action), action)

    def outcome(self, outcome: StepOutcome, action: str) -> StepOutcome:
        return outcome


class SetAnchor(FrozenLakeEnv):
    def _observe(self) -> Observation:
        observation = super()._observe()
        return dataclasses.replace(observation, anchor=frozenset([observation.anchor]))


class LateCrash(FrozenLakeEnv):
    has_moved = False

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        self.has_moved = False
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> StepOutcome:
        if self.has_moved and len(action) > 1000:
            raise MemoryError("too long")
        outcome = super().step(action)
        self.has_moved = self.has_moved or outcome.action_valid
        return outcome


class LimitAsEnd(FrozenLakeEnv):
    """Counts every step, and calls the limit an end of the task."""

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        self.count = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> StepOutcome:
        self.count += 1
        return dataclasses.replace(super().step(action), terminated=self.count > 100)


class GoalAsLimit(Changed):
    def outcome(self, outcome: StepOutcome, action: str) -> StepOutcome:
        return dataclasses.replace(outcome, terminated=False, truncated=outcome.terminated)


class NumberAsFlag(Changed):
    def outcome(self, outcome: StepOutcome, action: str) -> StepOutcome:
        return dataclasses.replace(outcome, terminated=int(outcome.terminated))


class NoneAsFlag(Changed):
    def outcome(self, outcome: StepOutcome, action: str) -> StepOutcome:
        return dataclasses.replace(outcome, truncated=None)


class LateLiar(Changed):
    """Offers an action that it refuses, after the first step."""

    def outcome(self, outcome: StepOutcome, action: str) -> StepOutcome:
        observation = dataclasses.replace(outcome.observation, admissible_actions=("fly",))
        return dataclasses.replace(outcome, observation=observation)


class SeedsWhenMade(FrozenLakeEnv):
    def __init__(self) -> None:
        super().__init__()
        random.seed(0)


class DrawsWhenRefusing(Changed):
    def outcome(self, outcome: StepOutcome, action: str) -> StepOutcome:
        if action.strip() and not outcome.action_valid:
            np.random.random()
        return outcome


class PaysForNonsense(Changed):
    def outcome(self, outcome: StepOutcome, action: str) -> StepOutcome:
        return outcome if outcome.action_valid else dataclasses.replace(outcome, reward=1.0)


class CountedMove(FrozenLakeEnv):
    """Counts legal moves in the anchor."""

    count = 0

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        self.count = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> StepOutcome:
        outcome = super().step(action)
        self.count += outcome.action_valid
        anchor = f"{outcome.observation.anchor} {self.count}" if self.count else "start"
        observation = dataclasses.replace(outcome.observation, anchor=anchor)
        return dataclasses.replace(outcome, observation=observation)


class Hoard(FrozenLakeEnv):
    kept: list[bytes] = []  # noqa: RUF012 - the leak that is to be noticed

    def __init__(self) -> None:
        super().__init__()
        Hoard.kept.append(bytes(bytearray(200_000)))


class Wanderer(FrozenLakeEnv):
    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> Observation:
        os.chdir("/")
        return super().reset(seed=seed, options=options)


class Quitter(FrozenLakeEnv):
    def step(self, action: str) -> StepOutcome:
        sys.exit(3)


class Sleeper(FrozenLakeEnv):
    def step(self, action: str) -> StepOutcome:
        while True:
            try:
                time.sleep(60)
            except Exception:
                continue


class NoActions(FrozenLakeEnv):
    def _observe(self) -> Observation:
        return dataclasses.replace(super()._observe(), admissible_actions=())


Check = Callable[[EnvSpec, int, Mapping[str, Any]], object]


@pytest.mark.parametrize(
    ("check", "make", "message"),
    [
        (check_determinism, SetAnchor, "dicts of these, but anchor is a frozenset"),
        (check_nonsense, LimitAsEnd, "must have action_valid=False and go on; what a limit cuts"),
        (check_expert, GoalAsLimit, "ends in success and is truncated"),
        (check_determinism, NumberAsFlag, "terminated must be True or False, got 0"),
        (check_determinism, NoneAsFlag, "truncated must be True or False, got None"),
        (check_determinism, LateLiar, "'fly' is admissible at step 1 of seed 0"),
        (check_determinism, SeedsWhenMade, "global random state of Python or numpy changed"),
        (check_nonsense, DrawsWhenRefusing, "global random state of Python or numpy changed"),
        (check_nonsense, PaysForNonsense, "must have reward 0, or a penalty below, got 1.0"),
        (check_determinism, Wanderer, "the working folder changed to /"),
    ],
)
def test_a_planted_fault_is_found(check: Check, make: type[FrozenLakeEnv], message: str):
    folder, state = Path.cwd(), random.getstate()
    with pytest.raises(EnvContractError, match=message):
        check(spec_with(make=make), 0, LAKE.default_options)
    assert Path.cwd() == folder
    assert random.getstate() == state


def test_nonsense_is_tried_after_the_first_step_too():
    with pytest.raises(MemoryError, match="too long"):
        check_nonsense(spec_with(make=LateCrash), 0, LAKE.default_options)


def test_every_admissible_action_can_be_said():
    def project(text: str, admissible: Any) -> Any:
        return LAKE.project(text.replace("up", "down"), admissible)

    with pytest.raises(EnvContractError, match=r"must read format_response\('up'\) back"):
        check_determinism(spec_with(project=project), 0, LAKE.default_options)


def test_a_counter_of_legal_moves_in_the_anchor_is_warned_of():
    (remark,) = measure(spec_with(make=CountedMove), 0, LAKE.default_options, num_resets=2).remarks
    assert "never to the anchor of then" in remark
    assert measure(LAKE, 0, LAKE.default_options, num_resets=2).remarks == ()


def walk(num_steps: int, **end: bool) -> Walk:
    texts = tuple(map(str, range(num_steps)))
    return Walk(
        texts=texts,
        anchors=texts,
        **{"terminated": False, "truncated": False, "success": False, **end},
    )


def test_ends_that_are_probably_of_the_other_kind_are_warned_of():
    (text,) = remarks([walk(20, terminated=True)] * 16)
    assert "terminated without success after exactly 20 steps" in text
    assert remarks([walk(20, terminated=True)] * 15 + [walk(9, terminated=True)]) == []
    assert remarks([walk(20, truncated=True)] * 16) == []
    (text,) = remarks([walk(20, truncated=True, success=True)])
    assert "truncated and is a success" in text


def test_a_leak_of_each_new_environment_is_measured():
    measured = measure(spec_with(make=Hoard), 0, LAKE.default_options, num_rollouts=2)
    Hoard.kept.clear()
    assert measured.leak_bytes_per_make > 100_000
    assert measured.leak_bytes_per_reset < 64 * 1024


def test_an_environment_that_ends_the_program_is_a_problem():
    report = report_of(Quitter)
    assert "nonsense is refused without an error: SystemExit: 3" in report.problems


def test_an_environment_that_hangs_is_a_problem():
    report = report_of(Sleeper, deadline_s=0.5)
    assert report.problems == [
        "equal seeds, equal episodes; global random state untouched: not done after 0.5 s. "
        "Something hangs, or is too slow for training."
    ]


def test_what_an_environment_prints_is_no_part_of_the_episode(
    tmp_path: Path, repo_root: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "talker.py").write_text(
        "from envs.frozenlake.env import FrozenLakeEnv\n"
        "class Talker(FrozenLakeEnv):\n"
        "    def step(self, action):\n"
        "        print('a step')\n"
        "        return super().step(action)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "envs.playback", "talker:Talker", "0", "{}"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{repo_root}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout) == 64
    assert "a step" in done.stderr


def test_what_was_not_checked_is_not_called_ok():
    report = run_check(spec_with(expert=None, corpus=tuple), num_members=2, num_tasks=1)
    assert [line.split(": not checked, ")[0] for line in report.not_checked] == [
        "texts of the corpus",
        "tasks of both splits differ",
        "the expert keeps its word",
    ]
    assert "-        the expert keeps its word: not checked, no expert" in report.lines()
    assert not any("expert" in text for text in report.passed)


def test_without_a_legal_action_the_report_says_so(monkeypatch: pytest.MonkeyPatch):
    # The other process would play the FrozenLake that is registered.
    monkeypatch.setattr("envs.checker.check_other_process", lambda *_: None)
    report = report_of(NoActions)
    assert report.is_fine
    assert any("no legal action was tried" in warning for warning in report.warnings)
    lines = list(report.lines())
    assert "measured anchors repeat: not known, no legal action was tried" in lines
    assert lines[-1].endswith("keeps the contract, as far as can be seen without a legal action.")


def test_a_corpus_without_its_data_is_not_the_fault_of_the_environment():
    def corpus() -> tuple[str, ...]:
        raise EnvDataError("get them with: make data")

    assert "without options" in str(check_corpus(spec_with(corpus=corpus)))


def test_data_that_are_not_there_are_reported_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MEGATRON_AGENT_DATA", raising=False)
    report = run_check(load_env("webshop"), options={"data_dir": "/nowhere"})
    (problem,) = report.problems
    assert "/nowhere" in problem


@pytest.mark.parametrize(
    "anchor",
    [
        "hall",
        b"hall",
        1,
        1.5,
        True,
        None,
        (1, None),
        [b"x", {"a": (1.0,)}],
        {1: "a"},
        {"a": {1, 2}},
        frozenset(),
        Path("hall"),
        1j,
        np.int64(1),
        np.float32(1),
        np.longdouble(1),
        np.datetime64("2026-01-01"),
        np.zeros(2),
        np.zeros(2, dtype=complex),
        np.zeros(2, dtype=np.longdouble),
        np.array(["a"]),
        np.array([None, "a"], dtype=object),
        np.array([frozenset()], dtype=object),
        np.zeros(1, dtype=[("a", int)]),
    ],
    ids=repr,
)
def test_anchors_are_judged_as_a_run_judges_them(anchor: Any):
    try:
        anchor_digest(anchor)
    except AnchorError:
        assert unfit_part(anchor)
    else:
        assert unfit_part(anchor) == ""
