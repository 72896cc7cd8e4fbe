"""Everything wrong with a configuration, collected before anything is said about it.

A person who mistyped three keys should see three problems at once, not one per start.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence

from megatron_agent.errors import ConfigError

logger = logging.getLogger(__name__)


class ConfigProblemsError(ConfigError):
    """One or more problems of a configuration; the message lists them all.

    Args:
        problems: at least one problem.

    Example:
        >>> print(ConfigProblemsError((
        ...     ConfigError("algorithm.gamma", "must be in [0, 1]", -1, "Use 0.95."),
        ...     ConfigError("env.max_steps", "must be >= 1", 0, "Use 12."),
        ... )))
        The configuration has 2 problems:
          1. algorithm.gamma must be in [0, 1], got -1. Use 0.95.
          2. env.max_steps must be >= 1, got 0. Use 12.
    """

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        first = problems[0]
        super().__init__(first.key, first.rule, first.value, first.remedy)
        self.problems = tuple(problems)
        # Pickling replays ``args``, so they must be those of this class.
        self.args = (self.problems,)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = [f"  {number}. {problem}" for number, problem in enumerate(self.problems, start=1)]
        return "\n".join([f"The configuration has {len(lines)} problems:", *lines])


class Findings:
    """Collects problems (the run cannot work) and warnings (it can, but is probably not what is
    meant).

    Args:
        runs_here: whether this machine is the one that will run. Where it is not, what is missing
            on it is a warning (`problem_here`).

    Example:
        >>> findings = Findings()
        >>> findings.problem("env.max_steps", "must be >= 1", 0, "Use 12.")
        >>> findings.raise_if_any()
        Traceback (most recent call last):
            ...
        megatron_agent...ConfigProblemsError: env.max_steps must be >= 1, got 0. Use 12.
    """

    def __init__(self, *, runs_here: bool = True) -> None:
        self.runs_here = runs_here
        self.problems: list[ConfigError] = []
        self.warnings: list[str] = []

    def problem(self, key: str, rule: str, value: object, remedy: str) -> None:
        """Record one problem; the arguments are those of `ConfigError`."""
        self.problems.append(ConfigError(key, rule, value, remedy))

    def problem_here(self, problem: ConfigError) -> None:
        """Record a problem of this machine, e.g. too few cores or a package that is missing."""
        if self.runs_here:
            self.problems.append(problem)
        else:
            self.warn(f"On this machine: {problem} The nodes of the job are asked when it starts.")

    def warn(self, message: str) -> None:
        """Record one warning, a sentence that names its key."""
        self.warnings.append(message)

    def log_warnings(self) -> None:
        """Hand the warnings to logging."""
        for message in self.warnings:
            logger.warning(message)

    def raise_if_any(self) -> None:
        """Raise when a problem was recorded.

        Raises:
            ConfigProblemsError: with every problem, in the order of recording.
        """
        if self.problems:
            raise ConfigProblemsError(self.problems)


def nearest_key(key: str, known_keys: Iterable[str]) -> str | None:
    """The known key that was probably meant, or None.

    A key with the right last part at the wrong place (``gamma``) beats one that merely looks alike.

    Example:
        >>> nearest_key("gamma", ["algorithm.gamma", "algorithm.lam"])
        'algorithm.gamma'
        >>> nearest_key("data.train_batchsize", ["data.train_batch_size", "data.seed"])
        'data.train_batch_size'
    """
    known = list(known_keys)
    leaf = key.rsplit(".", 1)[-1]
    same_leaf = [candidate for candidate in known if candidate.rsplit(".", 1)[-1] == leaf]
    for candidates, cutoff in ((same_leaf, 0.0), (known, 0.6)):
        near = difflib.get_close_matches(key, candidates, n=1, cutoff=cutoff)
        if near:
            return near[0]
    near_leaf = difflib.get_close_matches(leaf, {name.rsplit(".", 1)[-1] for name in known}, n=1)
    if not near_leaf:
        return None
    return nearest_key(near_leaf[0], known)
