"""Small batches that can be checked by hand, and the recorded reference batches."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_agent.credit import CreditRows

Sessions = Mapping[str, Sequence[tuple[Sequence[str], Sequence[float]]]]
"""Per group, one (anchors, rewards) pair for each session."""

GOLDEN: Sessions = {
    "g": [
        (["s0", "s1", "s2"], [0, 0, 10]),
        (["s0", "s1", "s1", "s3"], [0, 0, 0, 0]),
        (["s0", "s2"], [0, 10]),
    ],
    "h": [(["s0"], [10])],
}


def build_rows(
    sessions: Sessions, *, invalid: Sequence[str] = (), order: Sequence[int] | None = None
) -> CreditRows:
    """Rows of these sessions; ``invalid`` lists row keys, ``order`` permutes the rows."""
    records = []
    for uid, group in sessions.items():
        for session_id, (anchors, rewards) in enumerate(group):
            for step_idx, (anchor, reward) in enumerate(zip(anchors, rewards, strict=True)):
                key = f"{uid}_{session_id}_{step_idx}"
                records.append((key, anchor, reward, float(sum(rewards)), key not in invalid))
    if order is not None:
        records = [records[row] for row in order]
    keys, anchors, rewards, returns, valid = zip(*records, strict=True)
    return CreditRows.from_keys(
        keys,
        anchor_N=anchors,
        step_reward_N=rewards,
        episode_return_N=returns,
        action_valid_N=valid,
        # Some number that follows from the state, as a critic's value does.
        value_N=[sum(map(ord, anchor)) % 7 / 2 for anchor in anchors],
    )


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., CreditRows]:
    return build_rows


@pytest.fixture
def golden_rows() -> CreditRows:
    return build_rows(GOLDEN)


@pytest.fixture(scope="session")
def reference_path() -> Path:
    """File of 60 random batches with advantages recorded from the reference implementation."""
    repo = Path(__file__).parents[3]
    folder = Path(os.environ.get("MEGATRON_AGENT_DATA") or repo / "../shared/data")
    path = folder / "gigpo_reference_batches.json.gz"
    if not path.exists():
        reason = f"{path} is missing; set MEGATRON_AGENT_DATA to the folder that holds it"
        if os.environ.get("CI") or os.environ.get("MEGATRON_AGENT_REQUIRE_DATA"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def reference_batches(reference_path: Path) -> list[dict[str, Any]]:
    """The recorded batches (float32)."""
    with gzip.open(reference_path, "rt") as file:
        return json.load(file)


@pytest.fixture(scope="session")
def rows_of_reference() -> Callable[[dict[str, Any]], CreditRows]:
    """Turn a recorded batch into rows, in its order."""

    def convert(batch: dict[str, Any]) -> CreditRows:
        records = batch["rows"]
        sessions = {name: i for i, name in enumerate(dict.fromkeys(r["traj"] for r in records))}
        total = dict.fromkeys(sessions, 0.0)
        for record in records:
            total[record["traj"]] += record["reward"]
        return CreditRows.from_keys(
            [f"{r['uid']}_{sessions[r['traj']]}_{r['step']}" for r in records],
            anchor_N=[r["anchor"] for r in records],
            step_reward_N=[r["reward"] for r in records],
            episode_return_N=[total[r["traj"]] for r in records],
            action_valid_N=np.ones(len(records), dtype=bool),
        )

    return convert
