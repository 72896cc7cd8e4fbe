"""``megatron-agent plan``: from overrides to the text that is printed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from megatron_agent.config import DEFAULT_ROOT, Findings, compose_config
from megatron_agent.config.rules.algorithm import check_algorithm
from megatron_agent.config.rules.batches import check_batches
from megatron_agent.config.rules.combinations import check_combinations
from megatron_agent.config.rules.layout import MEGATRON_KEY, ROLLOUT_TP_KEY, check_ranks
from megatron_agent.config.rules.planning import check_planning
from megatron_agent.config.rules.sampling import check_sampling
from megatron_agent.config.tree_check import check_tree
from megatron_agent.config.values import ConfigValues
from megatron_agent.plan.overrides import SEARCHED
from megatron_agent.plan.plan import Plan, make_plan, refused
from megatron_agent.plan.read_job import read_job
from megatron_agent.plan.records import Job
from megatron_agent.plan.report import plan_data, plan_text, search_data, search_text
from megatron_agent.plan.search import search

# Not the rules on data, environments and model folders: what is planned need not be here.
RULES = (check_algorithm, check_batches, check_combinations, check_planning, check_sampling)


def run_plan(
    overrides: Sequence[str],
    *,
    config_name: str = DEFAULT_ROOT,
    with_search: bool = False,
    as_json: bool = False,
) -> tuple[str, bool]:
    """Plan, or search.

    Args:
        overrides: Hydra overrides, e.g. ``["experiment=webshop_72b", "cluster=8x8_h100"]``.
        config_name: root below ``configs/``.
        with_search: look for layouts instead of planning the configured one.
        as_json: data instead of tables.

    Returns:
        The text to print, and whether something fits.

    Raises:
        ConfigProblemsError: with everything that is wrong or cannot be planned.
    """
    job = job_from(overrides, config_name=config_name, to_search=with_search)
    if with_search:
        result = search(job)
        text = json.dumps(search_data(result)) if as_json else search_text(job, result)
        return text, bool(result.fitting)
    plan = plan_layout(job)
    return json.dumps(plan_data(plan)) if as_json else plan_text(plan), plan.fits


def job_from(
    overrides: Sequence[str], *, config_name: str = DEFAULT_ROOT, to_search: bool = False
) -> Job:
    """Compose a configuration and read the job in it; arguments as of `checked_job`.

    Raises:
        ConfigProblemsError: with everything that is wrong or cannot be planned.
    """
    findings = Findings()
    config = compose_config(overrides, config_name=config_name, findings=findings)
    return checked_job(ConfigValues.from_config(config), findings, to_search=to_search)


def checked_job(values: ConfigValues, findings: Findings, *, to_search: bool = False) -> Job:
    """Check what a plan depends on and read it.

    Args:
        values: the composed configuration.
        findings: what was found before.
        to_search: a search replaces the layout, so that it may be one that cannot be.

    Raises:
        ConfigProblemsError: with everything that is wrong or cannot be planned.
    """
    check_tree(values, findings)
    ruled = Findings()
    for rule in RULES if to_search else (check_ranks, *RULES):
        rule(values, ruled)
    findings.problems += [
        problem for problem in ruled.problems if not (to_search and problem.key in SEARCHED)
    ]
    findings.raise_if_any()
    job = read_job(values, findings)
    findings.raise_if_any()
    assert job is not None
    return job


def plan_layout(job: Job) -> Plan:
    """Plan the layout that is configured.

    Raises:
        ConfigProblemsError: Megatron or SGLang would refuse it.
    """
    findings = Findings()
    for reason in refused(job):
        key = ROLLOUT_TP_KEY if reason.startswith("rollout") else MEGATRON_KEY
        rule = f"must be a layout that the model allows ({reason})"
        findings.problem(key, rule, str(job.layout), "'--search' lists layouts that it allows.")
    findings.raise_if_any()
    return make_plan(job)
