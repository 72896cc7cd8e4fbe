"""Runs the checks on one run, each to its end, whatever the others find."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Collection

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import DoesNotApply, Finding, error
from megatron_agent.doctor.registry import Check, all_checks, check_names
from megatron_agent.doctor.report import CheckResult, Report


def examine(case: RunCase, *, skip: Collection[str] = (), deep: bool = False) -> Report:
    """Run all checks that were not left out.

    Args:
        case: the run.
        skip: names of checks to leave out.
        deep: also run the checks that start processes of the stack.

    Raises:
        ConfigError: ``skip`` names a check that does not exist.

    Example:
        >>> case = RunCase.from_overrides(["experiment=demo"])  # doctest: +SKIP
        >>> examine(case, skip=["installation"]).exit_code()  # doctest: +SKIP
        0
    """
    check_names(skip)
    # What libraries print must not end up in a report that a program reads.
    with contextlib.redirect_stdout(sys.stderr):
        results = [
            _left_out(check, skip, deep=deep) or _result(check, case) for check in all_checks()
        ]
    return Report(results=tuple(results))


def _left_out(check: Check, skip: Collection[str], *, deep: bool) -> CheckResult | None:
    reason = (
        "--skip" if check.name in skip else "needs --deep" if check.is_deep and not deep else ""
    )
    return CheckResult(check=check.name, about=check.about, skipped=reason) if reason else None


def _result(check: Check, case: RunCase) -> CheckResult:
    findings: list[Finding] = []
    skipped = ""
    started_s = time.perf_counter()
    try:
        for finding in check.find(case):
            findings.append(finding)
    except DoesNotApply as reason:
        skipped = str(reason)
    except Exception as failure:  # a broken check must not hide what the others find
        problem = f"could not be finished ({type(failure).__name__}: {failure})"
        remedy = f"Leave it out with --skip {check.name}, and report it as a bug."
        findings.append(error(f"check {check.name!r}", problem, remedy))
    return CheckResult(
        check=check.name,
        about=check.about,
        findings=tuple(findings),
        skipped=skipped,
        elapsed_s=time.perf_counter() - started_s,
    )
