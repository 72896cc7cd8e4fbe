"""Is an evaluation what it says? Asked before its numbers are logged.

verl averages over the sessions it finds. A session that was lost would leave the average without a
word, and one that could not be played at all would pass for a defeat.

No verl in here, so that this can be tested in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megatron_agent.backend.failure_rate import check_failure_rate, fatal_error
from megatron_agent.errors import FailureRateError


def check_evaluation(
    infos: Mapping[str, Sequence[Any]], *, num_expected: int, max_rate: float
) -> None:
    """Refuse an evaluation with lost or unplayable sessions, or with too many failed ones.

    Args:
        infos: verl's lists, one entry per session found: ``failure`` and ``fatal`` as the agent
            loop wrote them into ``reward_extra_info``, and others.
        num_expected: sessions that were asked for.
        max_rate: ``env.max_failure_rate``.

    Raises:
        FailureRateError: with the reason.
        LostProcessError: a session's inference server is gone.

    Example:
        >>> check_evaluation({"failure": ["", ""], "fatal": ["", ""]}, num_expected=2, max_rate=0.0)
    """
    failures = [str(failure or "") for failure in infos.get("failure", ())]
    for fatal in filter(None, infos.get("fatal", ())):
        raise fatal_error("A session of the evaluation", fatal)
    if len(failures) < num_expected:
        raise FailureRateError(
            f"The evaluation has {len(failures)} of {num_expected} sessions. "
            "verl logs why a session was lost in the agent loop worker's log."
        )
    check_failure_rate(failures, max_rate=max_rate, what="episodes of the evaluation")
