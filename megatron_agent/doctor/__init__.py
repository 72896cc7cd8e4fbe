"""``megatron-agent doctor``: everything that can be known before a run starts, all at once.

Read in this order: `findings` (what is said), `case` (about what), `registry` (who says it),
`checks` (one file per subject), `examination` (all of them), `report` (how it is told).
"""

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.examination import examine
from megatron_agent.doctor.findings import Finding, Severity
from megatron_agent.doctor.registry import Check, all_checks
from megatron_agent.doctor.report import CheckResult, Report

__all__ = [
    "Check",
    "CheckResult",
    "Finding",
    "Report",
    "RunCase",
    "Severity",
    "all_checks",
    "examine",
]
