"""Rules of what only the planner reads: a mistake there should not wait for somebody to plan."""

from __future__ import annotations

from megatron_agent.config.findings import Findings
from megatron_agent.config.plan_settings import HARDWARE_KEY, read_hardware, read_plan_settings
from megatron_agent.config.rules.layout import num_server_nodes
from megatron_agent.config.values import ConfigValues


def check_planning(values: ConfigValues, findings: Findings) -> None:
    """Expectations and facts are of the right type, and the run fits into the cluster."""
    read_plan_settings(values, findings)
    hardware = read_hardware(values, findings)
    if hardware is None:
        return
    trainer, servers = values.integer("trainer.nnodes") or 0, num_server_nodes(values)
    if trainer + servers > hardware.num_nodes:
        findings.problem(
            "trainer.nnodes",
            f"plus the servers' own nodes ({servers}) must be <= {HARDWARE_KEY}.num_nodes "
            f"({hardware.num_nodes})",
            trainer,
            "Choose a larger cluster, or give fewer nodes to one of them.",
        )
