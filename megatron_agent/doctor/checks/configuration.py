"""Keys, types, ranges, divisibility, and what environment and folders are named: the rules that
``megatron-agent check`` and ``train`` apply, as findings.
"""

from __future__ import annotations

from collections.abc import Iterator

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import Finding, error, warning
from megatron_agent.doctor.registry import check


@check("configuration", "every key is known, of its type and in its range, and sizes divide")
def check_configuration(case: RunCase) -> Iterator[Finding]:
    """All problems and warnings of `megatron_agent.config`."""
    if case.stack_failure:
        yield error("configuration", f"cannot be read ({case.stack_failure})", "Run 'make setup'.")
    for problem in case.config_findings.problems:
        yield error(problem.key, f"{problem.rule}, got {problem.value!r}", problem.remedy)
    for message in case.config_findings.warnings:
        key, _, rest = message.partition(" ")
        yield warning(key, rest.rstrip("."), "Correct it, or go on if it is meant.")
