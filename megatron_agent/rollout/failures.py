"""Failed episodes are data, until there are too many of them."""

from __future__ import annotations

from collections import Counter

from megatron_agent.errors import ConfigError, FailureRateError
from megatron_agent.types import Episode


class FailureMonitor:
    """Counts how the episodes of an iteration ended, and stops the run past a set rate of failures.

    Args:
        max_failure_rate: largest share of failed episodes that is still all right, in [0, 1].
        min_episodes: no verdict before this many episodes: the first one may just be unlucky.

    Example:
        >>> monitor = FailureMonitor(max_failure_rate=0.5, min_episodes=2)
        >>> monitor.record_failure("env_error: it died")
        >>> monitor.record_failure("")
        >>> monitor.metrics()
        {'episode/failure_rate': 0.5, 'episode/failures/env_error': 1.0}
    """

    def __init__(self, max_failure_rate: float, min_episodes: int = 16) -> None:
        if not 0 <= max_failure_rate <= 1:
            raise ConfigError(
                "env.max_failure_rate", "must be in [0, 1]", max_failure_rate, "Use 0.2."
            )
        if min_episodes < 1:
            raise ConfigError("min_episodes", "must be >= 1", min_episodes, "Use 16.")
        self._max_failure_rate, self._min_episodes = max_failure_rate, min_episodes
        self._num_episodes = 0
        self._num_by_kind: Counter[str] = Counter()
        self._last_failure = ""

    @property
    def num_failed(self) -> int:
        return sum(self._num_by_kind.values())

    def start_iteration(self) -> None:
        """Begin to count afresh."""
        self._num_episodes = 0
        self._num_by_kind.clear()

    def record(self, episode: Episode) -> None:
        """Count one finished episode; raises as `record_failure`."""
        self.record_failure(episode.failure)

    def record_failure(self, failure: str) -> None:
        """Count one finished episode by its ``failure`` text (empty: it did not fail).

        Raises:
            FailureRateError: the share of failed episodes is above ``max_failure_rate``.
        """
        self._num_episodes += 1
        if failure:
            self._num_by_kind[failure.partition(":")[0]] += 1
            self._last_failure = failure
        if self._num_episodes >= self._min_episodes:
            self._check()

    def metrics(self) -> dict[str, float]:
        """Share of failed episodes, and how many failed in which way."""
        rate = self.num_failed / self._num_episodes if self._num_episodes else 0.0
        by_kind = {
            f"episode/failures/{kind}": float(num)
            for kind, num in sorted(self._num_by_kind.items())
        }
        return {"episode/failure_rate": rate, **by_kind}

    def _check(self) -> None:
        rate = self.num_failed / self._num_episodes
        if rate <= self._max_failure_rate:
            return
        kinds = ", ".join(f"{kind} {num}" for kind, num in self._num_by_kind.most_common())
        raise FailureRateError(
            f"{self.num_failed} of {self._num_episodes} episodes of this iteration failed, a rate "
            f"of {rate:.2f}; env.max_failure_rate allows {self._max_failure_rate:g}. By kind: "
            f"{kinds}. The last: {self._last_failure!r}. Mend the cause, or raise the limit."
        )
