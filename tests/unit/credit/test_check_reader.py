"""Files of recorded batches: what is read, and the one message for what cannot be."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from megatron_agent.credit.reference_batches import read_reference_batches
from megatron_agent.errors import CreditError

pytestmark = pytest.mark.unit

BATCH: dict[str, Any] = {
    "seed": 7,
    "gamma": 0.95,
    "step_advantage_w": 0.5,
    "mode": "mean_std_norm",
    "episode_stats": "rows",
    "rows": [
        {"uid": "g_0", "traj": "b", "step": 1, "anchor": "s1", "reward": 2, "length": 3},
        {"uid": "g_0", "traj": "b", "step": 0, "anchor": [[0, 1]], "reward": 0.25},
        {"uid": "g_0", "traj": "a", "step": 0, "anchor": "", "reward": -1.0},
    ],
    "step_returns": [2, 2.15, -1.0],
    "advantages": [1, 2.5, -3.5],
}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def message_of(path: Path) -> str:
    with pytest.raises(CreditError) as caught:
        read_reference_batches(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(*path: str | int, to: Any) -> list[Any]:
    batches = [copy.deepcopy(BATCH), copy.deepcopy(BATCH)]
    parent: Any = batches
    for key in path[:-1]:
        parent = parent[key]
    if to is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = to
    return batches


def test_rows_options_and_results_are_read(tmp_path: Path) -> None:
    (batch,) = read_reference_batches(write(tmp_path / "b.json", [BATCH]))
    assert batch.rows.episode_return_N.tolist() == [2.25, 2.25, -1.0]
    assert batch.rows.step_N.tolist() == [1, 0, 0]
    assert batch.rows.session_N.tolist() == [0, 0, 1]
    assert batch.step_return_N.tolist() == [2.0, 2.15, -1.0]
    assert batch.advantage_N.tolist() == [1.0, 2.5, -3.5]
    config = batch.config
    assert (config.gamma, config.step_advantage_w) == (0.95, 0.5)
    assert (config.mode, config.episode_statistics) == ("mean_std_norm", "row")
    assert batch.place(0) == "batch 0, row 0 (group 'g_0', trajectory 'b', step 1)"


def test_equal_names_of_trajectories_in_two_groups_are_two_trajectories(tmp_path: Path) -> None:
    batch = copy.deepcopy(BATCH)
    batch["rows"][2] |= {"uid": "h", "traj": "b"}
    (read,) = read_reference_batches(write(tmp_path / "b.json", [batch]))
    assert read.rows.episode_return_N.tolist() == [2.25, 2.25, -1.0]


def test_compressed_content_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(gzip.compress(json.dumps([BATCH]).encode()))
    assert len(read_reference_batches(path)) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.json.gz", b"[]", "must be compressed with gzip, as its name says, got a file that"),
        ("b.json.gz", gzip.compress(b"[1, 2, 3]" * 99, mtime=0)[:-9], "it may be cut off"),
        ("b.json.gz", b"\x1f\x8b\x08\x00broken stream", "Copy the file again"),
        ("b.json", b"\xff\xfe", "must hold UTF-8 text, plain or compressed with gzip, got"),
        ("b.json", b"", "must hold JSON, got Expecting value: line 1 column 1"),
        ("b.json", b"[{]", "Write the list of batches with a JSON library."),
        ("b.json", b"[" * 200_000, "must hold JSON, got"),
        ("b.json", b"{}", "must hold a list of at least one batch, got {}. Give objects with"),
        ("b.json", b"[]", "must hold a list of at least one batch, got []"),
        ("b.json", b"[3]", "batch 0 must be an object, got 3. Give objects with gamma, "),
    ],
    ids=[
        "not compressed",
        "cut off",
        "broken stream",
        "not UTF-8",
        "empty",
        "not JSON",
        "too deep",
        "an object",
        "an empty list",
        "a list of numbers",
    ],
)
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = message_of(path)
    assert found.startswith(str(path))
    assert message in found


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "must be a file that can be read, got Is a directory" in message_of(tmp_path)


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (["mode"], ..., "batch 1 must have the field 'mode', got seed, gamma, step_advantage_w"),
        (["mode"], "std", "batch 1, mode must be one of mean_norm, mean_std_norm, got 'std'. Rec"),
        (["mode"], [], "batch 1, mode must be one of mean_norm, mean_std_norm, got []"),
        (["episode_stats"], "row", "episode_stats must be one of rows, trajectories, got 'row'"),
        (["gamma"], 1.5, "batch 1, gamma must be a finite number in [0, 1], got 1.5. Record"),
        (["gamma"], "0.9", "gamma must be a finite number in [0, 1], got '0.9'"),
        (["gamma"], True, "gamma must be a finite number in [0, 1], got True"),
        (["step_advantage_w"], -1, "step_advantage_w must be a finite number >= 0, got -1"),
        (["rows"], [], "batch 1, rows must be a list of at least one row, got []. Give objects"),
        (["rows"], {}, "batch 1, rows must be a list of at least one row, got {}"),
        (["rows", 2], 5, "batch 1, row 2 must be an object, got 5. Give objects with uid, traj"),
        (["rows", 2, "uid"], ..., "batch 1, row 2 must have the field 'uid', got traj, step"),
        (["rows", 2], {}, "row 2 must have the field 'uid', got no fields. Add 'uid'."),
        (["rows", 2, "uid"], "", "batch 1, row 2, uid must be text that is not empty, got ''"),
        (["rows", 2, "traj"], 3, "batch 1, row 2, traj must be text that is not empty, got 3"),
        (["rows", 2, "step"], 0.0, "batch 1, row 2, step must be a whole number >= 0, got 0.0"),
        (["rows", 2, "step"], -1, "step must be a whole number >= 0, got -1. Count steps from 0."),
        (["rows", 2, "step"], 2**80, "step must be a whole number >= 0, got 1208925819614629"),
        (["rows", 2, "step"], 1, "batch 1: steps of a session must be 0, 1, 2, ... without gaps"),
        (["rows", 0, "step"], 0, "batch 1: a row must occur once, got group 'g_0', session 0"),
        (
            ["rows", 2, "anchor"],
            None,
            "batch 1, row 2: anchor must be a value that names the state",
        ),
        (["rows", 2, "reward"], float("nan"), "row 2, reward must be a finite number, got nan"),
        (["rows", 2, "reward"], None, "row 2, reward must be a finite number, got None"),
        (["rows", 2, "reward"], 10**400, "row 2, reward must be a finite number, got 1000"),
        (["step_returns"], ..., "batch 1 must have the field 'step_returns'"),
        (
            ["step_returns"],
            [1.0],
            "must be a list of one number per row, 3 in all, got 1 of them",
        ),
        (["step_returns"], None, "must be a list of one number per row, 3 in all, got None"),
        (["advantages"], [1, 2], "batch 1, advantages must be a list of one number per row, 3 in"),
        (
            ["advantages", 1],
            float("inf"),
            "batch 1, advantages[1] must be a finite number, got inf",
        ),
        (["advantages", 1], "1", "batch 1, advantages[1] must be a finite number, got '1'"),
    ],
)
def test_a_wrong_field_is_named_with_place_rule_value_and_remedy(
    tmp_path: Path, path: list[str | int], to: Any, message: str
) -> None:
    file = write(tmp_path / "b.json", changed(1, *path, to=to))
    assert message in message_of(file)


def test_rewards_too_large_to_add_up_are_refused(tmp_path: Path) -> None:
    batch = copy.deepcopy(BATCH)
    for row in batch["rows"]:
        row["reward"] = 1e308
    assert "episode_return_N must be finite" in message_of(write(tmp_path / "b.json", [batch]))
