"""Rows of an episode."""

from __future__ import annotations

import asyncio

import pytest

from megatron_agent.errors import EnvError
from megatron_agent.rollout.episode import run_episode
from megatron_agent.rollout.memory import WindowMemory
from megatron_agent.rollout.samples import episode_to_samples
from megatron_agent.types import EncodedPrompt, Episode

pytestmark = pytest.mark.unit


@pytest.fixture
def play(task, fakes):
    def run(texts: list[str], errors: dict[int, Exception] | None = None) -> Episode:
        return asyncio.run(
            run_episode(
                task=task,
                uid="g7",
                session_id=2,
                session=fakes.Session(errors),
                spec=fakes.Spec(),
                memory=WindowMemory(2),
                encode=lambda prompt: EncodedPrompt(ids_L=(len(prompt),)),
                generate=fakes.Generate(texts),
                max_steps=5,
                max_prompt_length=100,
            )
        )

    return run


def test_one_row_per_step_with_what_was_sampled(play):
    rows = episode_to_samples(play(["on", "on", "x", "on", "on"]))
    assert [row.key for row in rows] == [f"g7_2_{step}" for step in range(5)]
    assert rows[2].response_ids_L == tuple(b"x")
    assert rows[0].prompt_ids_L == (6,)
    assert rows[2].log_probs_L == (-0.5,)
    assert [row.step_reward for row in rows] == [0, 0, 0, 0, 1]
    assert [row.action_valid for row in rows] == [True, True, False, True, True]
    assert {row.episode_return for row in rows} == {1.0}
    assert {row.episode_length for row in rows} == {5}
    assert {row.success for row in rows} == {True}
    assert {row.failed for row in rows} == {False}
    assert {(row.weight_version_min, row.weight_version_max) for row in rows} == {(3, 4)}


def test_equal_observations_have_equal_anchors(play):
    rows = episode_to_samples(play(["on", "back", "on", "back", "on"]))
    anchors = [row.anchor for row in rows]
    assert anchors[0] == anchors[2] == anchors[4] != anchors[1] == anchors[3]


def test_every_row_of_a_failed_episode_says_so(play):
    rows = episode_to_samples(play(["on", "on"], {1: EnvError("it died")}))
    assert [row.failed for row in rows] == [True, True]
    assert {row.success for row in rows} == {False}


def test_an_episode_that_never_began_has_no_rows(play):
    assert episode_to_samples(play([], {-1: EnvError("it died")})) == []
