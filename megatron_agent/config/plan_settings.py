"""Keys that the planner reads and a run does not: expectations, and the facts of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_agent.config.fields import read_settings, ruled
from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues

PLAN_KEY = "plan"
HARDWARE_KEY = "cluster.hardware"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSettings:
    """Keys below ``plan``. A mean that is null is half of its limit."""

    model_shape: str | None
    """A file of ``configs/model/shapes/``, used while the model's own folder is not there."""
    mean_episode_steps: float | None = ruled(at_least=1)
    """Steps of an episode; each is a row."""
    mean_prompt_tokens: float | None = ruled(at_least=1)
    """Of a step."""
    mean_response_tokens: float | None = ruled(at_least=1)
    """Of a step."""
    row_spread: float = ruled(at_least=0)
    """Standard deviation of row lengths over their mean."""
    env_step_s: float = ruled(at_least=0)
    """Of one environment step, waiting for its worker included."""
    memory_margin: float = ruled(at_least=0, at_most=0.5, remedy="Use 0.08.")
    """Share of a GPU's memory that a plan leaves free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSettings:
    """Keys below ``cluster.hardware.gpu``, from the data sheet."""

    name: str
    memory_gib: float = ruled(above=0)
    bf16_tflops: float = ruled(above=0)
    memory_gb_s: float = ruled(above=0)
    nvlink_gb_s: float = ruled(above=0)
    sustained_matmul: float = ruled(above=0, at_most=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareSettings:
    """Keys below ``cluster.hardware``: the whole cluster, trainer and servers."""

    num_nodes: int = ruled(at_least=1)
    gpus_per_node: int = ruled(at_least=1)
    network_gb_s: float = ruled(above=0)
    pcie_gb_s: float = ruled(above=0)
    host_memory_gib: float = ruled(above=0)
    gpu: GpuSettings


def read_plan_settings(values: ConfigValues, findings: Findings) -> PlanSettings | None:
    """The planner's keys; None when something was recorded."""
    return read_settings(PlanSettings, values.get(PLAN_KEY), PLAN_KEY, findings)


def read_hardware(values: ConfigValues, findings: Findings) -> HardwareSettings | None:
    """The facts of the cluster; None when something was recorded, or it states none."""
    section = values.get(HARDWARE_KEY)
    if section is None:
        return None
    return read_settings(HardwareSettings, section, HARDWARE_KEY, findings)
