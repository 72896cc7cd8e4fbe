"""What a check has to say: one record per fault, with what to do about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.IntEnum):
    """How bad it is. The worst of a report decides the exit code."""

    NOTE = 0
    """Worth knowing; nothing has to be done."""
    WARNING = 1
    """The run would start, and is probably not what is meant."""
    ERROR = 2
    """The run would fail, or its numbers would be wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One fault.

    Example:
        >>> str(error("RAY_ADDRESS", "must name a cluster that answers, got 'x:1'", "Unset it."))
        "RAY_ADDRESS must name a cluster that answers, got 'x:1'. Unset it."
    """

    severity: Severity
    subject: str
    """The key, file, package or machine that it is about."""
    problem: str
    """The rule and what was found instead, as words that follow the subject."""
    remedy: str
    """What to do, a short imperative sentence."""

    def __str__(self) -> str:
        return f"{self.subject} {self.problem}. {self.remedy}"


def reason(failure: Exception) -> str:
    """An exception in one line, whole: what went wrong often stands in the last of its lines."""
    return f"{type(failure).__name__}: {' '.join(str(failure).split())}"


class DoesNotApply(Exception):
    """Raised by a check that has nothing to look at in this run; its message says why."""


def error(subject: str, problem: str, remedy: str) -> Finding:
    """A fault that the run would fail of, or that would make its numbers wrong."""
    return Finding(severity=Severity.ERROR, subject=subject, problem=problem, remedy=remedy)


def warning(subject: str, problem: str, remedy: str) -> Finding:
    """Something that is probably not what is meant."""
    return Finding(severity=Severity.WARNING, subject=subject, problem=problem, remedy=remedy)


def note(subject: str, problem: str, remedy: str) -> Finding:
    """Something worth knowing."""
    return Finding(severity=Severity.NOTE, subject=subject, problem=problem, remedy=remedy)
