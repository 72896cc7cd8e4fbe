"""How long environments take, and how they fail: from episodes to rows, and from rows to metrics.

Rows are all that travels from the processes that play to the one that trains, so the times of an
episode travel with them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from megatron_agent.rollout.pool_stats import percentile
from megatron_agent.types import Episode

_PERCENTS = (50, 95, 99)


def row_timings(episode: Episode) -> list[dict[str, Any]]:
    """What each row of an episode carries; of an episode without steps the one row that stands for
    it.

    Example:
        >>> row_timings(Episode(uid="g", session_id=0, env="taxi", task_id="t", seed=0,
        ...     split="train", turns_T=(), success=False, reset_s=0.5))
        [{'env': 'taxi', 'reset_s': 0.5, 'num_restores': 0, 'env_s': None}]
    """
    facts = {
        "env": episode.env,
        "reset_s": episode.reset_s,
        "num_restores": episode.num_restores,
    }
    env_s_T: list[float | None] = [turn.env_s for turn in episode.turns_T]
    return [facts | {"env_s": env_s} for env_s in env_s_T or [None]]


def env_metrics(
    sessions: Collection[Mapping[str, Any]], rows: Collection[Mapping[str, Any]]
) -> dict[str, float]:
    """Latencies by environment, and failures by kind.

    Args:
        sessions: one row of each session.
        rows: all rows.

    Returns:
        ``env/<name>/reset_s/p50|p95|p99`` and ``env/<name>/step_s/...``: what an episode waited,
        for the worker's queue too, failed calls included; ``episode/failed/<kind>``: share of the
        episodes, for kinds that occurred; ``episode/restores/mean``.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for session in sessions:
        if "env" in session:  # not in the row of a session that could not be played
            seconds[f"env/{_tag(session['env'])}/reset_s"].append(session["reset_s"])
    for row in rows:
        if row.get("env_s") is not None:
            seconds[f"env/{_tag(row['env'])}/step_s"].append(row["env_s"])
    kinds = Counter(session["failure"].split(":", 1)[0] for session in sessions)
    kinds.pop("", None)
    return {
        f"{name}/p{percent}": percentile(values, percent)
        for name, values in seconds.items()
        for percent in _PERCENTS
    } | {
        **{f"episode/failed/{kind}": count / len(sessions) for kind, count in kinds.items()},
        "episode/restores/mean": sum(session.get("num_restores", 0) for session in sessions)
        / len(sessions),
    }


def _tag(env: str) -> str:
    """An environment's name as a part of a metric's: ``gym:Taxi-v4`` has a colon."""
    return re.sub(r"[^\w.-]", "_", env)
