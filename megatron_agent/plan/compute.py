"""Seconds that a GPU needs for the layers of a micro-batch: a roofline with stated efficiencies."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_agent.plan.activations import layer_bytes
from megatron_agent.plan.params import count_active
from megatron_agent.plan.records import Job

BF16 = 2
TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """Shares of the data sheet's rates that real programs reach.

    Set once, from the rows that ``docs/plan.md`` names, and the same for every model and layout.
    """

    matmul: float = 0.93
    """Of what large products sustain, in the trainer's matrix products."""
    attention: float = 0.65
    """Of the same rate, in flash attention with packed rows."""
    expert_matmul: float = 0.42
    """Of the same rate, in the many small products of experts, permutation included."""
    hbm: float = 0.75
    nvlink: float = 0.75
    network: float = 0.65
    pcie: float = 0.80
    balance: float = 0.93
    """Of a micro-batch's token budget, filled: rows are not divisible."""
    row_host_s: float = 1.5e-3
    """Host work for a row before and after log-probabilities: dispatch, padding, gathering."""
    micro_batch_overhead_s: float = 0.03
    """Packing, launches, and the host's part of a micro-batch, forward and backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSeconds:
    """One layer and one micro-batch on one rank."""

    forward: float
    backward: float


def row_flops(job: Job) -> float:
    """Model FLOPs of a mean row, forward: two for each matrix element, and causal attention.

    Example:
        A 7B model and rows of 1,000 tokens: 2 * 7.07e9 * 1000 + 28 * 2 * 3584 * 1000^2 = 1.43e13.
    """
    shape, num_tokens = job.shape, job.workload.mean_row_tokens
    attention = shape.num_layers * 2 * shape.query_size * num_tokens**2
    return 2.0 * count_active(shape) * num_tokens + attention


def layer_seconds(job: Job, num_tokens: int, efficiency: Efficiency) -> LayerSeconds:
    """Forward and backward of one layer on ``num_tokens`` packed tokens per rank."""
    matmul, attention = (
        _matmul_s(job, num_tokens, efficiency),
        _attention_s(job, num_tokens, efficiency),
    )
    # What lies between the products is bound by memory: each kept tensor is written and read.
    memory = (
        2 * layer_bytes(job, num_tokens) / (job.cluster.gpu.memory_gb_s * GIGA * efficiency.hbm)
    )
    comm = _tensor_comm_s(job, num_tokens, efficiency) + _expert_comm_s(job, num_tokens, efficiency)
    comm += _context_comm_s(job, num_tokens, efficiency)
    forward = matmul + attention + memory + comm
    # Sequence parallelism gathers the inputs once more for the weights' gradients.
    backward = _gradients(job) * matmul + 2.5 * attention + 2 * memory + 1.5 * comm
    return LayerSeconds(forward=forward, backward=backward)


def output_seconds(job: Job, num_tokens: int, efficiency: Efficiency) -> LayerSeconds:
    """The output layer and the loss, on the last stage."""
    columns = job.shape.vocab_size / job.layout.tensor
    flops = 2.0 * num_tokens * job.shape.hidden_size * columns
    product = flops / (sustained_flops(job) * efficiency.matmul)
    if job.training.fused_kernels:
        # The logits are computed once more.
        return LayerSeconds(forward=product, backward=(1 + _gradients(job)) * product)
    # Softmax, division by the temperature and gradients go over float32 logits about six times.
    passes = 6 * 4 * num_tokens * columns / (job.cluster.gpu.memory_gb_s * GIGA * efficiency.hbm)
    backward = _gradients(job) * product + passes / 2
    return LayerSeconds(forward=product + passes / 2, backward=backward)


def sustained_flops(job: Job) -> float:
    """FLOPs per second of a GPU in large matrix products."""
    gpu = job.cluster.gpu
    return gpu.bf16_tflops * TERA * gpu.sustained_matmul


def group_gb_s(job: Job, stride: int, num_ranks: int, efficiency: Efficiency) -> float:
    """Bytes per second of a collective of ``num_ranks`` ranks that are ``stride`` ranks apart.

    Megatron numbers tensor ranks first, then context, data and pipeline ranks.
    """
    if stride * num_ranks <= job.cluster.gpus_per_node:
        return job.cluster.gpu.nvlink_gb_s * GIGA * efficiency.nvlink
    return job.cluster.network_gb_s * GIGA * efficiency.network


def _gradients(job: Job) -> int:
    """Products of a backward pass for each of the forward pass: inputs, and weights if trained."""
    return 1 if job.training.lora_rank else 2


def _matmul_s(job: Job, num_tokens: int, efficiency: Efficiency) -> float:
    shape = job.shape
    attention = shape.hidden_size * (2 * shape.query_size + 2 * shape.key_value_size)
    mlp = 3 * shape.hidden_size * shape.ffn_size * shape.active_mlps
    peak = sustained_flops(job) * job.layout.tensor
    if shape.num_experts:
        dense = attention + shape.hidden_size * shape.num_experts
        return (
            2.0
            * num_tokens
            * (dense / (peak * efficiency.matmul) + mlp / (peak * efficiency.expert_matmul))
        )
    return 2.0 * num_tokens * (attention + mlp) / (peak * efficiency.matmul)


def _attention_s(job: Job, num_tokens: int, efficiency: Efficiency) -> float:
    # A token looks at half of its row on average; context parallelism balances the halves.
    flops = 2.0 * num_tokens * job.workload.mean_row_tokens * job.shape.query_size
    peak = sustained_flops(job) * job.layout.tensor
    return flops / (peak * efficiency.attention)


def _tensor_comm_s(job: Job, num_tokens: int, efficiency: Efficiency) -> float:
    """Two all-gathers and two reduce-scatters of the residual stream, or as many all-reduces."""
    tensor = job.layout.tensor
    if tensor == 1:
        return 0.0
    num_bytes = 4 * BF16 * job.shape.hidden_size * num_tokens * (tensor - 1) / tensor
    return num_bytes / group_gb_s(job, 1, tensor, efficiency)


def _expert_comm_s(job: Job, num_tokens: int, efficiency: Efficiency) -> float:
    """Each routed token goes to its experts and comes back."""
    expert = job.layout.expert
    if expert == 1:
        return 0.0
    routed = num_tokens / job.layout.tensor * job.shape.experts_per_token
    num_bytes = 2 * BF16 * job.shape.hidden_size * routed * (expert - 1) / expert
    # What stays inside the node goes by NVLink at the same time.
    in_node = min(max(job.cluster.gpus_per_node // job.layout.expert_tensor, 1), expert)
    leaves = 1.0 if in_node == expert else (expert - in_node) / (expert - 1)
    return leaves * num_bytes / group_gb_s(job, job.layout.expert_tensor, expert, efficiency)


def _context_comm_s(job: Job, num_tokens: int, efficiency: Efficiency) -> float:
    """Keys and values of the other ranks pass by; half of it hides behind attention."""
    context = job.layout.context
    if context == 1:
        return 0.0
    per_rank = 2 * BF16 * job.shape.key_value_size * num_tokens / job.layout.tensor
    num_bytes = per_rank * (context - 1) / 2
    return num_bytes / group_gb_s(job, job.layout.tensor, context, efficiency)
