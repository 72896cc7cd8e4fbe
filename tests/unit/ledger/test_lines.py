"""What counts as a line of the ledger, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_agent.cli import main
from megatron_agent.ledger import Attempt, Ledger, LedgerError, read_ledger

pytestmark = pytest.mark.unit

FIRST = Attempt(attempt=1, resumed_step=0, mode="sync", tasks_per_epoch=4)
OUTCOME = {"group": "a", "task_id": "t", "return_mean": 0.5, "num_success": 1, "num_failed": 0}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path)
    ledger.append(FIRST)
    return ledger


def add(ledger: Ledger, line: bytes) -> None:
    with ledger.path.open("ab") as file:
        file.write(line)


def trained(**fields: Any) -> dict[str, Any]:
    return {"kind": "trained", "step": 1, "groups": [OUTCOME], "removed": [], **fields}


@pytest.mark.parametrize(
    ("record", "rule"),
    [
        ([1], "it must be an object"),
        ({"step": 1}, "kind must be one of attempt, admitted, trained,"),
        ({"kind": [1]}, "kind must be one of"),
        ({"kind": "checkpoint"}, "it must have the fields step, not none"),
        ({"kind": "checkpoint", "step": 1, "at": 2}, "it must have the fields step, not step, at"),
        ({"kind": "checkpoint", "step": "1"}, "step must be an integer >= 0"),
        ({"kind": "checkpoint", "step": True}, "step must be an integer >= 0"),
        ({"kind": "checkpoint", "step": -1}, "step must be an integer >= 0"),
        ({"kind": "admitted", "step": 1, "groups": ["a"]}, "groups must be an object"),
        ({"kind": "admitted", "step": 1, "groups": None}, "groups must be an object"),
        ({"kind": "admitted", "step": 1, "groups": {"a": 3}}, "groups.a must be text"),
        ({"kind": "evicted", "step": 1, "groups": "a"}, "groups must be a list"),
        ({"kind": "evicted", "step": 1, "groups": [1]}, r"groups\[0\] must be text"),
        (trained(groups=None), "groups must be a list"),
        (trained(groups={"a": "t"}), "groups must be a list"),
        (trained(removed=["a"]), r"removed\[0\] must be an object"),
        (trained(groups=[{**OUTCOME, "task_id": None}]), r"groups\[0\].task_id must be text"),
        (trained(groups=[{"group": "a"}]), r"groups\[0\] must have the fields group, task_id"),
        (
            trained(groups=[{**OUTCOME, "return_mean": "1"}]),
            r"groups\[0\].return_mean must be a number or null",
        ),
        (
            {"kind": "attempt", "attempt": 2, "resumed_step": 0, "mode": "", "tasks_per_epoch": 4},
            "mode must be one of sync, colocate_async, separate_async",
        ),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b""])
def test_json_of_another_shape_is_refused(
    ledger: Ledger, record: Any, rule: str, end: bytes
) -> None:
    """Also in the last line, and without its end: a write that was cut short is no whole JSON."""
    add(ledger, json.dumps(record).encode() + end)
    with pytest.raises(LedgerError, match=rf"line 2 must be an event of the ledger \({rule}"):
        read_ledger(ledger.path)


@pytest.mark.parametrize(
    "line", [b'{"kind": "trained", "step": 1, oops}\n', b"\xff\xfe\n", b"\0\0"]
)
def test_a_last_line_that_is_no_event_is_refused(ledger: Ledger, line: bytes) -> None:
    add(ledger, line)
    with pytest.raises(
        LedgerError, match=r"line 2 must be an event .*\(it must be JSON in UTF-8\)"
    ):
        read_ledger(ledger.path)


@pytest.mark.parametrize("line", [b"{", b'{"kind": "trai', b'{"kind": "trained", "step": 1, "gr'])
def test_writes_that_were_cut_short_are_passed_over(ledger: Ledger, line: bytes) -> None:
    add(ledger, line)
    assert read_ledger(ledger.path) == [FIRST]
    add(ledger, b"\n" + line)  # the next attempt was killed within its first line
    assert read_ledger(ledger.path) == [FIRST]
    ledger.append(FIRST)
    assert read_ledger(ledger.path) == [FIRST, FIRST]


def test_the_command_refuses_what_it_cannot_read(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    add(ledger, b'{"kind": "admitted", "step": "1", "groups": null}\n')
    assert main(["ledger", "check", str(ledger.path.parent)]) == 2
    said = capsys.readouterr().err
    assert f"{ledger.path}, line 2 must be an event of the ledger (step must be" in said
    assert "The file is only ever appended to; restore it from a copy." in said
    ledger.path.write_bytes(b"\xff\n")
    assert main(["ledger", "check", str(ledger.path.parent)]) == 2
