"""What the planner says to a job before it is handed to a queue."""

from __future__ import annotations

from omegaconf import DictConfig

from megatron_agent.config import ConfigProblemsError, Findings
from megatron_agent.config.rules.layout import MEGATRON_KEY
from megatron_agent.config.values import ConfigValues
from megatron_agent.plan.command import checked_job, plan_layout
from megatron_agent.plan.plan import make_plan

REMEDY = (
    "`megatron-agent plan --search` with the same keys lists layouts that fit; "
    "`sbatch slurm/train_gigpo.sbatch` asks nobody."
)


def check_before_launch(config: DictConfig, findings: Findings) -> None:
    """Object to a layout that does not fit into the GPUs' memory.

    A run without GPUs is not planned. What the planner does not know is a warning: the run may be
    fine.

    Args:
        config: composed and checked.
        findings: gets a problem for each reason why the run would end without memory.
    """
    values = ConfigValues.from_config(config)
    if values.text("trainer.device") == "cpu":
        return
    try:
        job = checked_job(values, Findings())
        plan_layout(job)
    except ConfigProblemsError as error:
        findings.warn(f"The run is not planned: {error}")
        return
    for reason in make_plan(job).problems:
        rule = f"must be a layout that fits ({reason})"
        findings.problem(MEGATRON_KEY, rule, str(job.layout), REMEDY)
