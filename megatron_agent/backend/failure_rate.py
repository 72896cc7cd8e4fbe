"""Failed episodes are data, until there are too many of them, or one that could not be played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from megatron_agent.errors import FailureRateError, LostProcessError

LOST_PROCESS = "lost_process"
"""How the ``fatal`` text of a session begins whose inference server is gone."""


def fatal_error(session: str, fatal: str) -> FailureRateError | LostProcessError:
    """The error that ends a run with a session that could not be played.

    Args:
        session: which one, in words.
        fatal: the reason, ``kind: text``.

    Example:
        >>> fatal_error("Session 0 of group a", "lost_process: the actor died")
        LostProcessError('Session 0 of group a could not be played: lost_process: the actor died')
    """
    kind = LostProcessError if fatal.startswith(f"{LOST_PROCESS}:") else FailureRateError
    return kind(f"{session} could not be played: {fatal}")


def check_failure_rate(failures: Sequence[str], *, max_rate: float, what: str = "episodes") -> None:
    """Stop a run in which too many episodes failed.

    Args:
        failures: for each episode why it failed (``kind: text``), empty when it did not.
        max_rate: ``env.max_failure_rate``.
        what: the episodes, in words, for the message.

    Raises:
        FailureRateError: with counts by kind and the first failure.

    Example:
        >>> check_failure_rate(["", "env_error: it died"], max_rate=0.5)
    """
    failed = [failure for failure in failures if failure]
    if len(failed) <= max_rate * len(failures):
        return
    kinds = Counter(failure.split(":", 1)[0] for failure in failed)
    counted = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    raise FailureRateError(
        f"{len(failed)} of {len(failures)} {what} failed ({counted}), more than "
        f"env.max_failure_rate={max_rate} allows. First failure: {failed[0]}"
    )
