"""Rules of the parallel layout: ranks, and what a model's shape allows.

The rules on heads and vocabulary are Megatron's own; it would state them after every process has
loaded torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues

MEGATRON_KEY = "actor_rollout_ref.actor.megatron"
TP_KEY = f"{MEGATRON_KEY}.tensor_model_parallel_size"
PP_KEY = f"{MEGATRON_KEY}.pipeline_model_parallel_size"
CP_KEY = f"{MEGATRON_KEY}.context_parallel_size"
EP_KEY = f"{MEGATRON_KEY}.expert_model_parallel_size"
ROLLOUT_TP_KEY = "actor_rollout_ref.rollout.tensor_model_parallel_size"
SERVER_NODES_KEY = "actor_rollout_ref.rollout.nnodes"

_OPTIONAL_POOLS = (
    ("reward.reward_model.enable_resource_pool", "reward.reward_model"),
    ("distillation.enabled", "distillation"),
)
"""Flags, and the sections that say what each of these pools has."""


def num_server_nodes(values: ConfigValues) -> int:
    """Nodes that the servers have beside the trainer's, in mode separate_async; 0 in others.

    Example:
        >>> num_server_nodes(ConfigValues({"trainer": {"v1": {"trainer_mode": "sync"}}}))
        0
    """
    is_separate = values.text("trainer.v1.trainer_mode") == "separate_async"
    return max(values.integer(SERVER_NODES_KEY) or 0, 0) if is_separate else 0


def gpu_pools(values: ConfigValues) -> dict[str, tuple[int, int]]:
    """What verl asks Ray for, pool by pool, all at the same time: nodes, and GPUs on each of them.

    The trainer's pool holds its servers too, but for mode separate_async, where they have one more
    beside it. The keys are those that name the GPUs on a node.

    Example:
        >>> gpu_pools(ConfigValues({"trainer": {"nnodes": 2, "n_gpus_per_node": 8}}))
        {'trainer.n_gpus_per_node': (2, 8)}
    """
    sections = ["trainer", *(section for flag, section in _OPTIONAL_POOLS if values.flag(flag))]
    if num_server_nodes(values):
        sections.insert(1, SERVER_NODES_KEY.removesuffix(".nnodes"))
    return {
        f"{section}.n_gpus_per_node": (
            max(values.integer(f"{section}.nnodes") or 0, 0),
            max(values.integer(f"{section}.n_gpus_per_node") or 0, 0),
        )
        for section in sections
    }


def gpus_on_each_node(pools: Mapping[str, tuple[int, int]], num_nodes: int) -> int:
    """GPUs that every node of a job must have at least: a pool's part of a node is never split,
    and where there are fewer nodes than the pools have together, some share one.

    Args:
        pools: as `gpu_pools` gives them.
        num_nodes: nodes of the job, all alike.

    Example:
        >>> pools = {"trainer": (2, 8), "servers": (1, 4)}
        >>> gpus_on_each_node(pools, 3), gpus_on_each_node(pools, 2)
        (8, 10)
    """
    total = sum(nodes * gpus for nodes, gpus in pools.values())
    return max(-(-total // max(num_nodes, 1)), *(gpus for _, gpus in pools.values()))


def check_ranks(values: ConfigValues, findings: Findings) -> None:
    """Sizes are positive, and their product divides the number of devices."""
    sizes = {key: values.integer(key) for key in (TP_KEY, PP_KEY, CP_KEY, ROLLOUT_TP_KEY)}
    counts = {key: values.integer(key) for key in ("trainer.n_gpus_per_node", "trainer.nnodes")}
    for key, size in (sizes | counts).items():
        if size is not None and size < 1:
            findings.problem(key, "must be >= 1", size, "Use 1.")
    numbers = [
        size for size in (*sizes.values(), *counts.values()) if size is not None and size >= 1
    ]
    if len(numbers) < len(sizes) + len(counts):
        return
    num_tensor, num_pipeline, num_context, num_rollout, per_node, num_nodes = numbers
    num_devices = per_node * num_nodes
    model_ranks = num_tensor * num_pipeline * num_context
    if num_devices % model_ranks:
        findings.problem(
            "trainer.n_gpus_per_node",
            f"times trainer.nnodes ({num_nodes}) must be a multiple of tensor x pipeline x context "
            f"parallelism ({num_tensor} x {num_pipeline} x {num_context} = {model_ranks})",
            per_node,
            f"Use {model_ranks} devices or a multiple, or smaller parallel sizes.",
        )
    if num_devices % num_rollout:
        findings.problem(
            ROLLOUT_TP_KEY,
            f"must divide the number of devices ({num_devices})",
            num_rollout,
            "Use 1 for one server per device.",
        )
    if values.text("trainer.device") == "cpu" and num_rollout > 1:
        findings.problem(
            ROLLOUT_TP_KEY,
            "must be 1 on a CPU: a sharded SGLang server needs NCCL",
            num_rollout,
            "Use 1; the number of servers grows with the number of ranks.",
        )


def check_shape(values: ConfigValues, shape: Mapping[str, Any], findings: Findings) -> None:
    """The model can be cut as asked.

    Args:
        values: the configuration.
        shape: the model folder's ``config.json``.
        findings: receives what cannot be cut.
    """
    num_tensor, num_pipeline = values.integer(TP_KEY), values.integer(PP_KEY)
    if num_tensor and num_tensor >= 1:
        _check_divides(TP_KEY, num_tensor, shape, "num_attention_heads", findings)
        _check_divides(TP_KEY, num_tensor, shape, "vocab_size", findings)
        num_kv_heads = _size(shape, "num_key_value_heads")
        # Megatron replicates key/value heads when there are fewer of them than ranks.
        if num_kv_heads and num_kv_heads % num_tensor and num_tensor % num_kv_heads:
            findings.problem(
                TP_KEY,
                f"must divide or be a multiple of num_key_value_heads ({num_kv_heads})",
                num_tensor,
                f"Use {num_kv_heads} or a divisor of it.",
            )
    _check_experts(values, shape, findings)
    # A hand-made cut into uneven stages is given by layout keys; then divisibility is not asked
    # for.
    is_uneven = any("layout" in name or "num_layers_in_" in name for name in _overrides(values))
    if num_pipeline and num_pipeline >= 1 and not is_uneven:
        _check_divides(PP_KEY, num_pipeline, shape, "num_hidden_layers", findings)


def _check_experts(values: ConfigValues, shape: Mapping[str, Any], findings: Findings) -> None:
    # Published folders have the first name, those that transformers 5 writes the second.
    name = "num_experts" if "num_experts" in shape else "num_local_experts"
    num_experts = _size(shape, name)
    expert, tensor = values.integer(EP_KEY) or 1, values.integer(TP_KEY) or 1
    if num_experts is None:
        if expert > 1:
            rule = "must be 1: the model is no mixture of experts"
            findings.problem(EP_KEY, rule, expert, "Use 1.")
        return
    _check_divides(EP_KEY, expert, shape, name, findings)
    if tensor > 1 and values.get(f"{MEGATRON_KEY}.sequence_parallel") is False:
        findings.problem(
            f"{MEGATRON_KEY}.sequence_parallel",
            f"must be true for a mixture of experts with tensor parallelism ({tensor})",
            False,
            f"Set it to true, or {TP_KEY}=1.",
        )


def _overrides(values: ConfigValues) -> Mapping[str, Any]:
    return values.mapping(f"{MEGATRON_KEY}.override_transformer_config")


def _check_divides(
    key: str, parts: int, shape: Mapping[str, Any], name: str, findings: Findings
) -> None:
    size = _size(shape, name)
    if size and size % parts:
        divisors = [str(divisor) for divisor in range(1, min(size, 64) + 1) if size % divisor == 0]
        remedy = f"Use one of {', '.join(divisors)}."
        findings.problem(key, f"must divide the model's {name} ({size})", parts, remedy)


def _size(shape: Mapping[str, Any], name: str) -> int | None:
    size = shape.get(name)
    return size if isinstance(size, int) and size > 0 else None
