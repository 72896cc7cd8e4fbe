"""A node of H100s, and a job on it that tests change one thing of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from megatron_agent.plan.layout import Layout
from megatron_agent.plan.records import Cluster, Gpu, Job, Rollout, Training, Workload
from megatron_agent.plan.shapes import shipped_shape

H100 = Gpu(
    name="H100-80",
    memory_gib=79.6,
    bf16_tflops=989.0,
    memory_gb_s=3350.0,
    nvlink_gb_s=450.0,
    sustained_matmul=0.7,
)


def cluster_of(num_nodes: int) -> Cluster:
    return Cluster(
        gpu=H100,
        gpus_per_node=8,
        num_nodes=num_nodes,
        network_gb_s=50.0,
        pcie_gb_s=55.0,
        host_memory_gib=2000.0,
    )


@pytest.fixture
def make_job() -> Callable[..., Job]:
    """``make_job(tensor=2, micro_batch_tokens=8192)``: fields of any record by their name."""

    def make(model: str = "qwen2.5-7b-instruct", num_nodes: int = 1, **changes: Any) -> Job:
        layout = {"num_gpus": 8 * num_nodes}
        records = {
            "layout": Layout(**layout),
            "training": Training(micro_batch_tokens=8192, log_prob_tokens=16384),
            "rollout": Rollout(tensor=1, memory_fraction=0.5, max_sequences=256),
            "workload": Workload(
                num_groups=16,
                group_size=8,
                max_steps=10,
                mean_steps=5.0,
                max_prompt_tokens=2048,
                mean_prompt_tokens=900.0,
                max_response_tokens=512,
                mean_response_tokens=100.0,
            ),
        }
        if "tensor" in changes:
            changes.setdefault("expert_tensor", changes["tensor"])
        top = {name: changes.pop(name) for name in ("memory_margin",) if name in changes}
        if "rollout_tensor" in changes:
            top_rollout = changes.pop("rollout_tensor")
            records["rollout"] = replace(records["rollout"], tensor=top_rollout)
        for name, record in records.items():
            own = {key: changes.pop(key) for key in list(changes) if hasattr(record, key)}
            records[name] = replace(record, **own)
        assert not changes, changes
        return Job(shape=shipped_shape(model), cluster=cluster_of(num_nodes), **records, **top)

    return make
