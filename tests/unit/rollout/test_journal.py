"""Episodes on disk."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from megatron_agent.rollout.journal import EpisodeJournal, episode_record, read_journal
from megatron_agent.types import Episode, Generation, Turn

pytestmark = pytest.mark.unit

TURN = Turn(
    step_idx=0,
    observation="cell 0\n\u2744",
    anchor="ab",
    anchor_text=None,
    admissible_actions=("on", "back"),
    prompt="go",
    prompt_ids_L=(5, 6, 7),
    generation=Generation(token_ids_L=(8, 9), log_probs_L=(-0.1, -0.2), text="on"),
    action="on",
    action_valid=True,
    invalid_reason="",
    reward=1.0,
    terminated=True,
    truncated=False,
    info={"success": True, "score": np.float32(2)},
)
EPISODE = Episode(
    uid="g",
    session_id=1,
    env="frozenlake",
    task_id="t",
    seed=3,
    split="eval",
    turns_T=(TURN,),
    success=True,
)


def test_a_record_is_for_people_to_read_and_has_no_token_ids():
    record = episode_record(EPISODE)
    assert (record["uid"], record["seed"], record["episode_return"]) == ("g", 3, 1.0)
    (turn,) = record["turns"]
    assert (turn["prompt"], turn["response"], turn["action"]) == ("go", "on", "on")
    assert (turn["num_prompt_tokens"], turn["num_response_tokens"]) == (3, 2)
    assert not any("ids" in key or "log_prob" in key for key in turn)


def test_token_ids_are_kept_on_request():
    (turn,) = episode_record(EPISODE, include_token_ids=True)["turns"]
    assert (turn["prompt_ids"], turn["response_ids"]) == ([5, 6, 7], [8, 9])
    assert turn["log_probs"] == [-0.1, -0.2]
    bare = dataclasses.replace(
        TURN, generation=Generation(token_ids_L=(8,), log_probs_L=None, text="")
    )
    record = episode_record(dataclasses.replace(EPISODE, turns_T=(bare,)), include_token_ids=True)
    assert record["turns"][0]["log_probs"] is None


def test_lines_are_appended_and_read_back(tmp_path: Path):
    path = tmp_path / "new" / "episodes.jsonl"
    for global_step in (1, 2):
        with EpisodeJournal(path) as journal:
            journal.append(EPISODE, global_step=global_step)
    records = list(read_journal(path))
    assert [record["global_step"] for record in records] == [1, 2]
    assert records[0]["turns"][0]["observation"] == "cell 0\n\u2744"
    assert len(path.read_text().splitlines()) == 2


def test_the_line_of_a_killed_writer_is_closed_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps({"uid": "a"}) + '\n{"uid": "ha')
    with EpisodeJournal(path) as journal:
        journal.append(EPISODE)
    assert [record["uid"] for record in read_journal(path)] == ["a", "g"]
    assert "line 2: not JSON, skipped" in caplog.text


def test_two_writers_do_not_mix_their_lines(tmp_path: Path):
    path = tmp_path / "episodes.jsonl"
    with EpisodeJournal(path) as first, EpisodeJournal(path) as second:
        for number in range(20):
            (first if number % 2 else second).append(EPISODE, number=number)
    assert [record["number"] for record in read_journal(path)] == list(range(20))


def test_a_closed_journal_refuses(tmp_path: Path):
    journal = EpisodeJournal(tmp_path / "episodes.jsonl")
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="the journal is closed"):
        journal.append(EPISODE)
