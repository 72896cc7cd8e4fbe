"""Bytes of activations and logits of one micro-batch on one rank.

bfloat16, flash attention, RMS norms, SwiGLU, no dropout: what verl's Megatron engine runs. A tensor
counts when autograd keeps it for the backward pass. L is the number of packed tokens on the rank.
"""

from __future__ import annotations

from megatron_agent.plan.records import Job

BF16, FP32 = 2, 4
FUSED_VOCAB_SPLIT = 9504
"""Columns of logit gradients that verl's fused kernel holds at a time."""


def layer_bytes(job: Job, num_tokens: int) -> int:
    """Kept by one layer without recompute.

    Residual stream and norms are cut over the tensor-parallel group by sequence parallelism, what
    lies between the matrices by tensor parallelism::

        2 L / sp * (2 residuals + 2 norm outputs) * h
        2 L / tp * (fused qkv + rotated q, k + attention output) + 4 L / tp * heads
        2 L / tp * (gate, up and their product) * ffn

    Example:
        See ``tests/unit/plan/test_activations.py`` for a layer counted by hand.
    """
    shape, tensor = job.shape, job.layout.tensor
    streams = 4 * shape.hidden_size * num_tokens // _sequence_shards(job)
    fused_qkv = shape.query_size + 2 * shape.key_value_size
    rotated = shape.query_size + shape.key_value_size
    normed = shape.query_size if shape.qk_norm else 0  # keys are a view of the fused tensor
    attention = (fused_qkv + rotated + normed + shape.query_size) * num_tokens // tensor
    softmax_sums = FP32 * shape.num_heads * num_tokens // tensor
    return BF16 * (streams + attention) + softmax_sums + _mlp_bytes(job, num_tokens)


def checkpoint_bytes(job: Job, num_tokens: int) -> int:
    """Kept at the start of each checkpointed chunk of layers: the residual stream."""
    return BF16 * job.shape.hidden_size * num_tokens // _sequence_shards(job)


def working_bytes(job: Job, num_tokens: int) -> int:
    """Live only while one layer computes.

    Two residual streams of all tokens (what sequence parallelism gathers, and the gradient it
    scatters) and the gradients inside the MLP, the widest place.
    """
    shape = job.shape
    gathered = 2 * BF16 * shape.hidden_size * num_tokens
    return gathered + _mlp_bytes(job, num_tokens)


def logits_bytes(job: Job, num_tokens: int, *, with_entropy: bool, with_grad: bool) -> int:
    """Of the output layer and the vocabulary-parallel loss, on the last stage.

    Without fused kernels: logits in bfloat16, their copy in float32 that becomes the softmax in
    place, and for the entropy a clone and another softmax, both float32.
    """
    columns = job.shape.vocab_size // job.layout.tensor
    if job.training.fused_kernels:
        split = min(columns, FUSED_VOCAB_SPLIT) if with_grad else 0
        return num_tokens * (BF16 * split + FP32 * job.shape.hidden_size)
    per_logit = BF16 + FP32 + (2 * FP32 if with_entropy else 0)
    return num_tokens * columns * per_logit


def layers_in_flight(job: Job, stage: int, num_micro_batches: int) -> int:
    """Layers times micro-batches whose activations a stage holds at the peak of 1F1B.

    The first stage of a plain pipeline holds one micro-batch for each stage; the interleaved
    schedule holds more, as Megatron counts its warm-up.

    Example:
        80 layers, PP4: the first stage holds 4 micro-batches of 20 layers, the last one 1 of 20.
    """
    layout = job.layout
    per_stage = job.shape.num_layers // layout.pipeline
    if layout.virtual_pipeline == 1:
        return per_stage * min(layout.pipeline - stage, num_micro_batches)
    per_chunk = per_stage // layout.virtual_pipeline
    warm_up = (layout.pipeline - stage - 1) * 2 + (layout.virtual_pipeline - 1) * layout.pipeline
    return per_chunk * min(warm_up + 1, num_micro_batches * layout.virtual_pipeline)


def stage_bytes(job: Job, stage: int, num_micro_batches: int) -> int:
    """Activations of a stage at its peak, logits apart."""
    num_tokens = job.training.micro_batch_tokens
    in_flight = layers_in_flight(job, stage, num_micro_batches)
    chunk = job.training.recompute_layers
    if not chunk:
        kept = in_flight * layer_bytes(job, num_tokens)
    else:
        # One chunk is computed again, in full, while the others wait at their checkpoints.
        kept = -(-in_flight // chunk) * checkpoint_bytes(job, num_tokens)
        kept += chunk * layer_bytes(job, num_tokens)
    return kept + working_bytes(job, num_tokens)


def forward_bytes(job: Job, num_tokens: int) -> int:
    """Peak of a pass without gradients, logits apart: one layer's input and insides."""
    return checkpoint_bytes(job, num_tokens) + working_bytes(job, num_tokens)


def _sequence_shards(job: Job) -> int:
    return job.layout.tensor if job.training.sequence_parallel else 1


def _mlp_bytes(job: Job, num_tokens: int) -> int:
    """Gate, up and product; for experts also each routed token's way in and out, and the router."""
    shape, layout = job.shape, job.layout
    if not shape.num_experts:
        return BF16 * 3 * shape.ffn_size * num_tokens // layout.tensor
    # Balanced routing: a rank sees as many routed tokens as it sends out.
    own_tokens = num_tokens // _sequence_shards(job)
    routed = own_tokens * shape.experts_per_token
    inside = (
        BF16 * 3 * shape.ffn_size * routed
    )  # times expert_tensor gathered, over expert_tensor cut
    way = BF16 * 2 * shape.hidden_size * routed
    router = FP32 * 2 * shape.num_experts * own_tokens
    return inside + way + router
