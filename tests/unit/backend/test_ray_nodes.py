"""Waiting for the nodes of a cluster, with answers played back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from megatron_agent.backend.ray_nodes import EXIT_HEAD, EXIT_MISSING, missing_nodes, wait_for_nodes

pytestmark = pytest.mark.unit

Answer = Mapping[str, float] | Exception


def wait(*answers: Answer, deadline_s: float = 60.0, head_deadline_s: float = 60.0) -> int:
    """Ask for node1 and node2 with two GPUs each; the last answer is repeated."""
    replies: Iterator[Answer] = iter(answers)
    last = answers[-1]

    def ask() -> Mapping[str, float]:
        answer = next(replies, last)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return wait_for_nodes(
        ask,
        expected=["node1", "node2"],
        num_gpus=2,
        head_deadline_s=head_deadline_s,
        deadline_s=deadline_s,
        poll_s=0,
    )


def test_it_waits_through_refusals_and_late_nodes(capsys) -> None:
    assert wait(RuntimeError("not yet"), {"node1": 2}, {"node1": 2, "node2": 2}) == 0
    said = capsys.readouterr().err
    assert "node1 joined after" in said and "(1 of 2)" in said
    assert "node2 joined after" in said and "(2 of 2)" in said


def test_a_head_that_never_answers_is_told_with_its_last_word(capsys) -> None:
    refusal = RuntimeError("first line\nconnection refused")
    assert wait(refusal, head_deadline_s=0) == EXIT_HEAD
    assert "did not answer within 0 s: connection refused" in capsys.readouterr().err


def test_missing_nodes_are_named(capsys) -> None:
    assert wait({"node1": 1}, deadline_s=0) == EXIT_MISSING
    assert "missing after 0 s: node1 (1 of 2 GPUs); node2" in capsys.readouterr().err


def test_an_error_without_words_is_still_an_answer(capsys) -> None:
    assert wait(RuntimeError(), head_deadline_s=0) == EXIT_HEAD
    assert "no answer" in capsys.readouterr().err


def test_more_devices_than_asked_for_are_fine() -> None:
    assert missing_nodes(["a"], {"a": 8.0, "other": 8.0}, 4) == []


def test_the_codes_are_those_of_the_batch_shell() -> None:
    messages = Path(__file__).resolve().parents[3] / "slurm" / "lib" / "messages.sh"
    text = messages.read_text(encoding="utf-8")
    assert f"EXIT_HEAD={EXIT_HEAD} " in text
    assert f"EXIT_MISSING={EXIT_MISSING} " in text
