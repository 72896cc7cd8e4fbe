"""Rules of what only the planner reads: a mistake there should not wait for somebody to plan."""

from __future__ import annotations

from collections.abc import Mapping

from megatron_agent.config.findings import Findings
from megatron_agent.config.plan_settings import HARDWARE_KEY, read_hardware, read_plan_settings
from megatron_agent.config.rules.layout import gpu_pools, num_server_nodes
from megatron_agent.config.values import ConfigValues

LIMITS: Mapping[str, str] = {
    "plan.mean_episode_steps": "env.max_steps",
    "plan.mean_prompt_tokens": "data.max_prompt_length",
    "plan.mean_response_tokens": "data.max_response_length",
}
"""Means, and what none of them can be above."""


def check_planning(values: ConfigValues, findings: Findings) -> None:
    """Expectations and facts are of the right type, and the run fits into the cluster."""
    if read_plan_settings(values, findings) is not None:
        _check_expectations(values, findings)
    hardware = read_hardware(values, findings)
    if hardware is None:
        return
    for key, (_, per_node) in gpu_pools(values).items():
        if per_node > hardware.gpus_per_node:
            rule = f"must be <= {HARDWARE_KEY}.gpus_per_node ({hardware.gpus_per_node})"
            findings.problem(key, rule, per_node, "Choose a larger cluster, or more nodes.")
    trainer, servers = values.integer("trainer.nnodes") or 0, num_server_nodes(values)
    if trainer + servers > hardware.num_nodes:
        findings.problem(
            "trainer.nnodes",
            f"plus the servers' own nodes ({servers}) must be <= {HARDWARE_KEY}.num_nodes "
            f"({hardware.num_nodes})",
            trainer,
            "Choose a larger cluster, or give fewer nodes to one of them.",
        )


def _check_expectations(values: ConfigValues, findings: Findings) -> None:
    for key, limit_key in LIMITS.items():
        mean, limit = values.number(key), values.number(limit_key)
        if mean is not None and limit is not None and mean > limit:
            remedy = "Measure it, or leave it null for half of the limit."
            findings.problem(key, f"must be <= {limit_key} ({limit})", mean, remedy)
