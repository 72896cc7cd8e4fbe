"""Reads batches that were recorded with the outputs of the reference implementation.

A file (JSON, or JSON compressed with gzip) holds a list of batches. A batch is an object::

    {"gamma": 0.95, "step_advantage_w": 1.0, "mode": "mean_norm", "episode_stats": "rows",
     "rows": [{"uid": "g0", "traj": "g0t0", "step": 0, "anchor": "state 1", "reward": 0.0}, ...],
     "step_returns": [...], "advantages": [...]}

``mode`` is ``mean_norm`` or ``mean_std_norm``; ``episode_stats`` says whom the episode level's mean
and std are taken over, ``rows`` or ``trajectories``. ``step_returns`` and ``advantages`` are what
the reference gave, one number per row. Other fields (``seed``, ``length``) are not looked at.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from megatron_agent.anchors import anchor_digest
from megatron_agent.credit.config import CreditConfig, EpisodeStatistics, Mode
from megatron_agent.credit.rows import CreditRows
from megatron_agent.errors import AnchorError, CreditError

_GZIP_MAGIC = b"\x1f\x8b"
_EPISODE_STATISTICS: dict[str, EpisodeStatistics] = {"rows": "row", "trajectories": "trajectory"}
_BATCH_REMEDY = (
    "Give objects with gamma, step_advantage_w, mode, episode_stats, rows, step_returns, advantages"
)
_ROW_REMEDY = "Give objects with uid, traj, step, anchor, reward"


@dataclass(frozen=True, eq=False)
class ReferenceBatch:
    """One recorded batch of N rows, in the order of the file."""

    number: int
    """Position in the file, from 0."""
    rows: CreditRows
    config: CreditConfig
    """The options under which `compute_credit("gigpo", ...)` mirrors the reference."""
    trajectory_N: Sequence[str]
    step_return_N: NDArray[np.float64]
    """Recorded, not computed; so is ``advantage_N``."""
    advantage_N: NDArray[np.float64]

    def place(self, row: int) -> str:
        """Name a row as its file does."""
        return (
            f"batch {self.number}, row {row} (group {self.rows.group_N[row]!r}, "
            f"trajectory {self.trajectory_N[row]!r}, step {self.rows.step_N[row]})"
        )


def read_reference_batches(path: Path) -> list[ReferenceBatch]:
    """Read a file of recorded batches, see the head of this file.

    Raises:
        CreditError: the file cannot be read or does not hold such batches; the message names file,
            place, rule, value and remedy.
    """
    content = _load_json(path)
    if not isinstance(content, list) or not content:
        _fail(str(path), "must hold a list of at least one batch", content, _BATCH_REMEDY)
    return [_read_batch(path, number, batch) for number, batch in enumerate(content)]


def _load_json(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CreditError(
            f"{path} must be a file that can be read, got {error.strerror or error}. "
            "Give the path of a .json or .json.gz file."
        ) from error
    is_gzip = content.startswith(_GZIP_MAGIC)
    if path.suffix == ".gz" and not is_gzip:
        raise CreditError(
            f"{path} must be compressed with gzip, as its name says, got a file that begins with "
            f"{content[:8]!r}. Compress it, or rename it to .json."
        )
    try:
        text = (gzip.decompress(content) if is_gzip else content).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise CreditError(
            f"{path} must hold UTF-8 text, plain or compressed with gzip, got {error}. "
            "Copy the file again; it may be cut off."
        ) from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CreditError(
            f"{path} must hold JSON, got {error}. Write the list of batches with a JSON library."
        ) from error


def _read_batch(path: Path, number: int, batch: Any) -> ReferenceBatch:
    place = f"{path}: batch {number}"
    if not isinstance(batch, dict):
        _fail(place, "must be an object", batch, _BATCH_REMEDY)
    config = CreditConfig(
        gamma=_number(batch, "gamma", place, high=1.0),
        step_advantage_w=_number(batch, "step_advantage_w", place),
        mode=_choice(batch, "mode", place, get_args(Mode)),
        episode_statistics=_EPISODE_STATISTICS[
            _choice(batch, "episode_stats", place, tuple(_EPISODE_STATISTICS))
        ],
        lonely_episode="raw_score",  # as the reference does
    )
    records = _field(batch, "rows", place)
    if not isinstance(records, list) or not records:
        _fail(f"{place}, rows", "must be a list of at least one row", records, _ROW_REMEDY)
    rows, trajectory_N = _read_rows(place, records)
    return ReferenceBatch(
        number=number,
        rows=rows,
        config=config,
        trajectory_N=trajectory_N,
        step_return_N=_column(batch, "step_returns", place, len(records)),
        advantage_N=_column(batch, "advantages", place, len(records)),
    )


def _read_rows(batch_place: str, records: Sequence[Any]) -> tuple[CreditRows, list[str]]:
    keys, anchors, rewards, trajectories = [], [], [], []
    session_of: dict[tuple[str, str], int] = {}
    rewards_of: dict[tuple[str, str], list[float]] = {}
    for position, record in enumerate(records):
        place = f"{batch_place}, row {position}"
        if not isinstance(record, dict):
            _fail(place, "must be an object", record, _ROW_REMEDY)
        trajectory = _text(record, "uid", place), _text(record, "traj", place)
        reward = _number(record, "reward", place, low=-math.inf)
        session = session_of.setdefault(trajectory, len(session_of))
        keys.append(f"{trajectory[0]}_{session}_{_step(record, place)}")
        anchors.append(_anchor(record, place))
        rewards.append(reward)
        trajectories.append(trajectory)
        rewards_of.setdefault(trajectory, []).append(reward)
    total_of = {trajectory: sum(rewards) for trajectory, rewards in rewards_of.items()}
    rows = CreditRows.from_keys(
        keys,
        anchor_N=anchors,
        step_reward_N=rewards,
        episode_return_N=[total_of[trajectory] for trajectory in trajectories],
        action_valid_N=[True] * len(keys),
    )
    try:
        rows.validate()
    except CreditError as error:
        raise CreditError(f"{batch_place}: {error}") from error
    return rows, [name for _, name in trajectories]


def _step(record: dict[str, Any], place: str) -> int:
    step = _field(record, "step", place)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**31:
        _fail(f"{place}, step", "must be a whole number >= 0", step, "Count steps from 0")
    return step


def _anchor(record: dict[str, Any], place: str) -> str:
    try:
        return anchor_digest(_field(record, "anchor", place))
    except AnchorError as error:
        raise CreditError(f"{place}: {error}") from error


def _text(record: dict[str, Any], name: str, place: str) -> str:
    value = _field(record, name, place)
    if not isinstance(value, str) or not value:
        _fail(f"{place}, {name}", "must be text that is not empty", value, "Give it a name")
    return value


def _choice(batch: dict[str, Any], name: str, place: str, choices: Sequence[str]) -> Any:
    value = _field(batch, name, place)
    if not isinstance(value, str) or value not in choices:
        remedy = "Record the batch with one of these"
        _fail(f"{place}, {name}", f"must be one of {', '.join(choices)}", value, remedy)
    return value


def _number(
    fields: dict[str, Any], name: str, place: str, *, low: float = 0.0, high: float = math.inf
) -> float:
    value = _field(fields, name, place)
    if not (_is_finite(value) and low <= value <= high):
        rule = "must be a finite number"
        if low == 0:
            rule += " >= 0" if high == math.inf else f" in [0, {high:g}]"
        _fail(f"{place}, {name}", rule, value, "Record the batch again")
    return float(value)


def _column(batch: dict[str, Any], name: str, place: str, num_rows: int) -> NDArray[np.float64]:
    values = _field(batch, name, place)
    rule = f"must be a list of one number per row, {num_rows} in all"
    if not isinstance(values, list):
        _fail(f"{place}, {name}", rule, values, "Record the batch again")
    if len(values) != num_rows:
        raise CreditError(
            f"{place}, {name} {rule}, got {len(values)} of them. Record the batch again."
        )
    for row, value in enumerate(values):
        if not _is_finite(value):
            _fail(f"{place}, {name}[{row}]", "must be a finite number", value, "Record it again")
    return np.array(values, dtype=np.float64)


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the floats
        return False


def _field(fields: dict[str, Any], name: str, place: str) -> Any:
    if name not in fields:
        found = ", ".join(fields) or "no fields"
        raise CreditError(f"{place} must have the field {name!r}, got {found}. Add {name!r}.")
    return fields[name]


def _fail(place: str, rule: str, value: object, remedy: str) -> NoReturn:
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
    raise CreditError(f"{place} {rule}, got {shown}. {remedy}.")
