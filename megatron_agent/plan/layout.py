"""How a model and a batch are cut over devices, and which cuts Megatron accepts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatron_agent.plan.shapes import ModelShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Sizes of Megatron's process groups.

    Example:
        >>> layout = Layout(num_gpus=64, tensor=8, pipeline=4)
        >>> layout.data, str(layout)
        (2, 'TP8 PP4 DP2')
    """

    num_gpus: int
    """Devices of the trainer."""
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    """Ranks that share one expert's matrices; verl sets it to ``tensor`` unless told otherwise."""
    virtual_pipeline: int = 1
    """Model chunks per stage (interleaved schedule)."""

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one copy of the model, context parallelism included."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Copies of the model, each with its own share of the batch."""
        return self.num_gpus // self.model_ranks

    @property
    def optimizer_shards(self) -> int:
        """Ranks over which the distributed optimizer spreads its state of the dense parameters."""
        return self.data * self.context

    @property
    def expert_optimizer_shards(self) -> int:
        """The same for the parameters of experts."""
        return self.num_gpus // (self.expert_tensor * self.expert * self.pipeline)

    def __str__(self) -> str:
        parts = [f"TP{self.tensor}", f"PP{self.pipeline}"]
        if self.virtual_pipeline > 1:
            parts.append(f"VPP{self.virtual_pipeline}")
        if self.context > 1:
            parts.append(f"CP{self.context}")
        if self.expert > 1:
            parts.append(f"EP{self.expert}")
        if self.expert_tensor not in (1, self.tensor):
            parts.append(f"ETP{self.expert_tensor}")
        return " ".join([*parts, f"DP{self.data}"])


def layout_problems(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why Megatron would refuse this layout, one sentence each; nothing when it would not.

    Example:
        >>> from megatron_agent.plan.shapes import shipped_shape
        >>> shape = shipped_shape("qwen2.5-7b-instruct")
        >>> list(layout_problems(shape, Layout(num_gpus=8, tensor=8)))
        ['TP8 does not divide num_attention_heads (28)']
    """
    tensor, pipeline = layout.tensor, layout.pipeline
    for size, name in (
        (shape.num_heads, "num_attention_heads"),
        (shape.ffn_size if not shape.num_experts else tensor, "intermediate_size"),
        # Megatron-Bridge pads no vocabulary for these models.
        (shape.vocab_size, "vocab_size"),
    ):
        if size % tensor:
            yield f"TP{tensor} does not divide {name} ({size})"
    if shape.num_kv_heads % tensor and tensor % shape.num_kv_heads:
        yield f"TP{tensor} and num_key_value_heads ({shape.num_kv_heads}) do not divide one another"
    chunks = pipeline * layout.virtual_pipeline
    if shape.num_layers % chunks:
        yield (
            f"PP{pipeline} x VPP{layout.virtual_pipeline} does not divide num_hidden_layers "
            f"({shape.num_layers})"
        )
    if layout.virtual_pipeline > 1 and pipeline == 1:
        yield f"VPP{layout.virtual_pipeline} needs PP of 2 or more"
    if layout.num_gpus % layout.model_ranks:
        yield f"TP x PP x CP ({layout.model_ranks}) does not divide {layout.num_gpus} GPUs"
    yield from _expert_problems(shape, layout)


def _expert_problems(shape: ModelShape, layout: Layout) -> Iterator[str]:
    expert, expert_tensor = layout.expert, layout.expert_tensor
    if not shape.num_experts:
        if expert > 1:
            yield f"EP{expert} needs a mixture of experts; the model is dense"
        return
    if shape.num_experts % expert:
        yield f"EP{expert} does not divide num_experts ({shape.num_experts})"
    if shape.ffn_size % expert_tensor:
        yield f"ETP{expert_tensor} does not divide moe_intermediate_size ({shape.ffn_size})"
    ranks = expert_tensor * expert * layout.pipeline
    if layout.num_gpus % ranks:
        yield f"ETP x EP x PP ({ranks}) does not divide {layout.num_gpus} GPUs"
