"""What a plan is made for: machines, model, layout, batch. Plain numbers, no configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from megatron_agent.plan.layout import Layout
from megatron_agent.plan.shapes import ModelShape

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One device, as its data sheet has it."""

    name: str
    memory_gib: float
    """What the driver shows, not what the box says: an 80 GB H100 has 79.6 GiB."""
    bf16_tflops: float
    """Dense peak, without sparsity."""
    memory_gb_s: float
    nvlink_gb_s: float
    """To the GPUs of the same node, one direction."""
    sustained_matmul: float
    """Share of the peak that large matrix products sustain; power holds an H100 back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Equal nodes of equal GPUs."""

    gpu: Gpu
    gpus_per_node: int
    num_nodes: int
    network_gb_s: float
    """Between nodes, for each GPU, one direction."""
    pcie_gb_s: float
    """Between a GPU and host memory, one direction."""
    host_memory_gib: float
    """Of a node."""

    @property
    def num_gpus(self) -> int:
        return self.gpus_per_node * self.num_nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """How the trainer computes."""

    micro_batch_tokens: int
    """Packed tokens of a micro-batch on each rank (``actor.ppo_max_token_len_per_gpu``)."""
    log_prob_tokens: int
    """The same where only log-probabilities are computed."""
    num_mini_batches: int = 1
    num_epochs: int = 1
    sequence_parallel: bool = True
    recompute_layers: int = 0
    """Layers of a checkpointed chunk (full recompute, method uniform); 0 recomputes nothing."""
    param_offload: bool = False
    """Weights wait in host memory, and gradient buffers are freed."""
    reference_offload: bool = False
    optimizer_offload: bool = False
    fused_kernels: bool = False
    """Log-probabilities without materialised logits."""
    entropy_in_update: bool = False
    has_reference: bool = False
    """A second copy of the weights, for the KL loss."""
    has_critic: bool = False
    grad_bytes: int = 4
    """Of a gradient element: verl accumulates in float32."""
    optimizer_bytes: int = 12
    """Of a parameter: master weight and two moments of Adam."""
    lora_rank: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """How the servers generate."""

    tensor: int
    """GPUs of one server."""
    memory_fraction: float
    """Of the memory that is free when a server starts: its weights and its KV cache."""
    max_sequences: int
    """Most sequences that a server runs at once (``rollout.max_num_seqs``)."""
    weight_bytes: int = 2
    """Of a weight on the server: 1 with FP8."""
    bucket_bytes: int = 2 * GIB
    """Of a transfer at weight sync."""
    frees_memory: bool = True
    """Whether weights and cache leave the GPU while the trainer has it."""
    separate_gpus: int = 0
    """GPUs of their own; 0 shares the trainer's (colocated)."""
    cuda_graphs: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What an iteration has to do; means are expectations that a user can correct."""

    num_groups: int
    group_size: int
    max_steps: int
    mean_steps: float
    max_prompt_tokens: int
    mean_prompt_tokens: float
    max_response_tokens: int
    mean_response_tokens: float
    env_step_s: float = 0.05
    row_spread: float = 0.3
    """Standard deviation of row lengths over their mean."""

    @property
    def num_episodes(self) -> int:
        return self.num_groups * self.group_size

    @property
    def mean_rows(self) -> int:
        """Training rows of an iteration: one for each step of each episode."""
        return round(self.num_episodes * self.mean_steps)

    @property
    def max_rows(self) -> int:
        return self.num_episodes * self.max_steps

    @property
    def mean_row_tokens(self) -> float:
        return self.mean_prompt_tokens + self.mean_response_tokens

    @property
    def max_row_tokens(self) -> int:
        return self.max_prompt_tokens + self.max_response_tokens

    @property
    def mean_tokens(self) -> float:
        """Tokens that the trainer sees in an iteration."""
        return self.mean_rows * self.mean_row_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Overheads:
    """Bytes that no formula gives: assumed, and said in every plan."""

    trainer: float = 3.0 * GIB
    """CUDA context, NCCL channels, cuBLAS and Transformer Engine workspaces."""
    server_asleep: float = 1.2 * GIB
    """CUDA context and NCCL of an SGLang process."""
    server_graphs: float = 1.3 * GIB
    """CUDA graphs; they stay while the server sleeps."""
    server_awake: float = 1.5 * GIB
    """Activations of a prefill chunk, sampling buffers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Everything a plan depends on."""

    shape: ModelShape
    cluster: Cluster
    layout: Layout
    training: Training
    rollout: Rollout
    workload: Workload
    memory_margin: float = 0.08
    """Share of a GPU's memory left to the allocator's fragments."""
    overheads: Overheads = field(default_factory=Overheads)

    @property
    def usable_bytes(self) -> float:
        """Bytes of a GPU that a plan may use."""
        return self.cluster.gpu.memory_gib * GIB * (1 - self.memory_margin)

    @property
    def num_servers(self) -> int:
        return (self.rollout.separate_gpus or self.layout.num_gpus) // self.rollout.tensor
