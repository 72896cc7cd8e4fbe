"""From the rows of a training batch to one advantage and one return per row, with the checks that
must not be skipped.

No verl in here: the trainer hands over row keys and extra fields as plain Python, so that this can
be tested in milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from megatron_agent.backend.failure_rate import check_failure_rate, fatal_error
from megatron_agent.config import AgentSettings
from megatron_agent.credit import CreditRows, compute_credit, credit_needs
from megatron_agent.credit.row_weights import row_weights
from megatron_agent.errors import CreditError
from megatron_agent.rollout.env_timings import env_metrics

Row = Mapping[str, Any]

LOST_SESSIONS = "verl logs why a session was lost in the agent loop worker's log."


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchCredit:
    """Hop 7: what the update gets, one number per row, padding rows included (they get 0)."""

    advantage_N: np.ndarray
    """What the policy loss is weighted with."""
    return_N: np.ndarray
    """What a critic learns to predict."""
    metrics: dict[str, float]
    sessions: Mapping[tuple[str, int], Row] = field(default_factory=dict)
    """A row of each session that was played, also of groups that are not trained on, by group and
    session: what is equal on all rows of the session is read off it."""


def credit_batch(
    settings: AgentSettings,
    *,
    method: str,
    keys: Sequence[str],
    rows: Sequence[Row],
    is_padding_N: np.ndarray,
    response_length_N: np.ndarray,
    value_N: np.ndarray | None = None,
    log_prob_N: np.ndarray | None = None,
    entropy_N: np.ndarray | None = None,
    num_groups: int | None = None,
    removed: Mapping[str, Sequence[Row]] | None = None,
) -> BatchCredit:
    """Credit for every row of a batch; padding rows get 0 and enter no statistic.

    Args:
        settings: our part of the configuration.
        method: credit method, e.g. ``gigpo``.
        keys: N row keys ``{uid}_{session}_{step}``.
        rows: N dictionaries of extra fields, as the agent loop wrote them.
        is_padding_N: rows that verl added to fill the batch.
        response_length_N: tokens of each row that the loss sees.
        value_N: a critic's value of each row's state, when there is a critic.
        log_prob_N: log-probability of each row's response, where the method needs it.
        entropy_N: mean entropy of the policy over each row's response, where the method needs it.
        num_groups: groups that were asked for; None when nobody knows.
        removed: rows, each with its ``key``, of groups that were played in this step and are not
            trained on. They are in the means over episodes and in nothing else.

    Raises:
        CreditError: a session is missing from its group, a row is malformed, or there is none.
        FailureRateError: too many episodes failed, or one failed in a way that must end the run.
        LostProcessError: the inference server of a session is gone.
    """
    real = np.flatnonzero(~is_padding_N)
    real_keys = [keys[i] for i in real]
    real_rows = [rows[i] for i in real]
    if not real_rows:
        raise CreditError(
            f"The batch has no episode, only {len(keys)} padding rows. {LOST_SESSIONS}"
        )
    sessions = _sessions(real_keys, real_rows)
    removed_rows = [row for rows_of_group in (removed or {}).values() for row in rows_of_group]
    played = sessions | _sessions([str(row["key"]) for row in removed_rows], removed_rows)
    _check_fatal(played)
    _check_group_sizes(sessions, num_sessions=settings.env.rollout.n, num_groups=num_groups)
    played_rows = [*real_rows, *removed_rows]
    metrics = _episode_metrics(played, played_rows) | env_metrics(played.values(), played_rows)
    metrics |= {
        "train/rows": float(len(real)),
        "train/padding_rows": float(len(keys) - len(real)),
        "train/groups_kept/share": 1 - len(removed or {}) / len({uid for uid, _ in played}),
    }
    check_failure_rate(
        [str(row["failure"]) if row["failed"] else "" for row in played.values()],
        max_rate=settings.env.max_failure_rate,
    )

    credit_rows = CreditRows.from_keys(
        real_keys,
        anchor_N=np.array([row["anchor"] for row in real_rows], dtype=object),
        anchor_text_N=_anchor_texts(real_keys, real_rows, settings, method),
        step_reward_N=np.array([float(row["step_reward"]) for row in real_rows]),
        episode_return_N=np.array([float(row["episode_return"]) for row in real_rows]),
        action_valid_N=np.array([row["action_valid"] for row in real_rows]),
        failed_N=np.array([bool(row["failed"]) for row in real_rows]),
        # A session without steps has no state to value.
        value_N=None
        if value_N is None
        else np.where([row["episode_length"] > 0 for row in real_rows], value_N[real], 0.0),
        log_prob_N=None if log_prob_N is None else log_prob_N[real],
        entropy_N=None if entropy_N is None else entropy_N[real],
    )
    result = compute_credit(method, credit_rows, settings.credit_config(method))
    weight_N = row_weights(
        credit_rows, response_length_N[real], cast("Any", settings.algorithm.row_weights)
    )
    advantage_N, return_N = np.zeros(len(keys)), np.zeros(len(keys))
    advantage_N[real] = weight_N * result.advantage_N
    return_N[real] = result.return_N
    return BatchCredit(
        advantage_N=advantage_N,
        return_N=return_N,
        metrics=metrics | result.metrics,
        sessions=played,
    )


def _anchor_texts(
    keys: Sequence[str], rows: Sequence[Row], settings: AgentSettings, method: str
) -> np.ndarray | None:
    """Texts of the states, when the run or its method asks for them."""
    by_method = "anchor_text" in credit_needs(method)
    if not (by_method or settings.algorithm.gigpo.enable_similarity):
        return None
    who = f"credit method {method!r}" if by_method else "algorithm.gigpo.enable_similarity"
    for key, row in zip(keys, rows, strict=True):
        if not isinstance(row.get("anchor_text"), str):
            raise CreditError(
                f"anchors must be text for {who}, got none at row {key}. Let the environment "
                "return text as Observation.anchor, or train without it."
            )
    return np.array([row["anchor_text"] for row in rows], dtype=object)


def _sessions(keys: Sequence[str], rows: Sequence[Row]) -> dict[tuple[str, int], Row]:
    """First row seen of each session: the fields read here are equal on all rows of a session."""
    sessions: dict[tuple[str, int], Row] = {}
    for key, row in zip(keys, rows, strict=True):
        uid, session_id, _ = key.rsplit("_", 2)
        sessions.setdefault((uid, int(session_id)), row)
    return sessions


def _check_fatal(sessions: Mapping[tuple[str, int], Row]) -> None:
    for (uid, session_id), row in sessions.items():
        if row["fatal"]:
            raise fatal_error(f"Session {session_id} of group {uid}", str(row["fatal"]))


def _check_group_sizes(
    sessions: Mapping[tuple[str, int], Row], *, num_sessions: int, num_groups: int | None
) -> None:
    found: dict[str, set[int]] = defaultdict(set)
    for uid, session_id in sessions:
        found[uid].add(session_id)
    if num_groups is not None and len(found) < num_groups:
        raise CreditError(
            f"The batch has {len(found)} of {num_groups} groups; the others lost every session. "
            f"{LOST_SESSIONS}"
        )
    for uid, present in found.items():
        missing = sorted(set(range(num_sessions)) - present)
        if missing:
            raise CreditError(
                f"Group {uid} has {len(present)} of {num_sessions} sessions; missing: {missing}. "
                f"{LOST_SESSIONS}"
            )


def _episode_metrics(
    sessions: Mapping[tuple[str, int], Row], rows: Sequence[Row]
) -> dict[str, float]:
    """Means over episodes, not over rows: a long episode counts once."""

    def mean(field: str) -> float:
        return float(np.mean([float(row[field]) for row in sessions.values()]))

    lengths = [int(row["episode_length"]) for row in sessions.values()]
    return {
        "episode/return/mean": mean("episode_return"),
        "episode/success/mean": mean("success"),
        "episode/failed/mean": mean("failed"),
        "episode/length/mean": float(np.mean(lengths)),
        "episode/length/max": float(np.max(lengths)),
        "episode/count": float(len(sessions)),
        "step/action_valid/mean": float(np.mean([bool(row["action_valid"]) for row in rows])),
    }
