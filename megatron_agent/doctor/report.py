"""What an examination found, as text, as JSON and as an exit code."""

from __future__ import annotations

import json
from dataclasses import dataclass

from megatron_agent.doctor.findings import Finding, Severity

NAME_WIDTH = 14
WORDS = {Severity.NOTE: "note", Severity.WARNING: "warning", Severity.ERROR: "ERROR"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What became of one check."""

    check: str
    about: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    """Why it was not run; empty when it was."""
    elapsed_s: float = 0.0

    def lines(self) -> list[str]:
        """For a person."""
        if self.skipped:
            return [_line("skipped", self.check, f"{self.about} ({self.skipped})")]
        if not self.findings:
            return [_line("ok", self.check, self.about)]
        indent = " " * len(_line("", "", ""))
        return [
            line
            for finding in self.findings
            for line in (
                _line(WORDS[finding.severity], self.check, f"{finding.subject} {finding.problem}."),
                f"{indent}-> {finding.remedy}",
            )
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The results of all checks."""

    results: tuple[CheckResult, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that was found, in the order of the checks."""
        return tuple(finding for result in self.results for finding in result.findings)

    def exit_code(self) -> int:
        """0 when there is nothing above a note, 1 when there are warnings, 2 for errors."""
        return int(max((finding.severity for finding in self.findings), default=Severity.NOTE))

    def text(self) -> str:
        """One line a check that found nothing; two for each finding; a summary."""
        lines = [line for result in self.results for line in result.lines()]
        return "\n".join([*lines, "", self._summary()])

    def to_json(self) -> str:
        """``{"exit_code": ..., "checks": [{"name": ..., "findings": [...]}]}``."""
        checks = [
            {
                "name": result.check,
                "about": result.about,
                "skipped": result.skipped or None,
                "elapsed_s": round(result.elapsed_s, 3),
                "findings": [
                    {
                        "severity": finding.severity.name.lower(),
                        "subject": finding.subject,
                        "problem": finding.problem,
                        "remedy": finding.remedy,
                    }
                    for finding in result.findings
                ],
            }
            for result in self.results
        ]
        return json.dumps({"exit_code": self.exit_code(), "checks": checks}, indent=2)

    def _summary(self) -> str:
        counts = [
            f"{number} {word}{'' if number == 1 else 's'}"
            for severity, word in ((Severity.ERROR, "error"), (Severity.WARNING, "warning"))
            if (number := sum(finding.severity == severity for finding in self.findings))
        ]
        num_run = sum(not result.skipped for result in self.results)
        return f"{', '.join(counts) or 'Nothing to mend'}; {num_run} checks were run."


def _line(state: str, check: str, text: str) -> str:
    return f"{state:8} {check:{NAME_WIDTH}} {text}"
