"""The plugin in the driver and in a Ray worker, and the way between the nodes (``--deep``).

These start Ray as the run would, or join the cluster that ``RAY_ADDRESS`` names.
"""

from __future__ import annotations

from collections.abc import Iterator

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import DoesNotApply, Finding, error
from megatron_agent.doctor.registry import check


@check(
    "registration", "driver, Ray worker and nodes have the plugin and reach each other", deep=True
)
def check_registration(case: RunCase) -> Iterator[Finding]:
    """What `megatron_agent.backend.process_check` finds; needs a configuration without errors."""
    if case.config is None or case.config_findings.problems:
        raise DoesNotApply("the configuration has errors")
    # The rim: everything heavy is behind this import.
    from megatron_agent.backend.process_check import process_problems

    assert case.run_dir is not None
    for where, problem in process_problems(case.config, case.run_dir):
        remedy = "Install the locked versions (make setup) on every node; see docs/install.md."
        yield error(where, problem.rstrip("."), remedy)
