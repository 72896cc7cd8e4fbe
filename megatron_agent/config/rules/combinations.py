"""Settings that exclude one another in verl, Megatron or SGLang.

Each would stop a run, most of them minutes after its start. The source that refuses is named beside
each rule; what they accept together is accepted here.
"""

from __future__ import annotations

from megatron_agent.config.findings import Findings
from megatron_agent.config.rules.layout import CP_KEY, MEGATRON_KEY, PP_KEY, ROLLOUT_TP_KEY
from megatron_agent.config.values import ConfigValues

TRANSFORMER_KEY = f"{MEGATRON_KEY}.override_transformer_config"
ROLLOUT_KEY = "actor_rollout_ref.rollout"
MODEL_KEY = "actor_rollout_ref.model"
PACKED_KEY = f"{MEGATRON_KEY}.use_remove_padding"
DYNAMIC_CP_KEY = f"{MEGATRON_KEY}.dynamic_context_parallel"
VIRTUAL_KEY = f"{MEGATRON_KEY}.virtual_pipeline_model_parallel_size"


def check_combinations(values: ConfigValues, findings: Findings) -> None:
    """No two settings exclude one another."""
    for check in (
        _check_packing,
        _check_dynamic_context,
        _check_schedule,
        _check_recompute,
        _check_adapters,
        _check_servers,
        _check_router_replay,
        _check_fused,
    ):
        check(values, findings)


def _check_packing(values: ConfigValues, findings: Findings) -> None:
    # verl/workers/engine/megatron/transformer_impl.py: Megatron-Bridge counts the loss per token
    # under context parallelism, and verl hands a padding mask over in packed batches only.
    context = values.integer(CP_KEY) or 1
    if context > 1 and values.get(PACKED_KEY) is False:
        findings.problem(
            PACKED_KEY, f"must be true with context parallelism ({context})", False,
            f"Set {PACKED_KEY}=true, or {CP_KEY}=1.",
        )  # fmt: skip


def _check_dynamic_context(values: ConfigValues, findings: Findings) -> None:
    # The same file, _check_dcp_unsupported_features, and McoreEngineConfig.__post_init__.
    if not values.flag(DYNAMIC_CP_KEY):
        return
    remedy = f"Change it, or set {DYNAMIC_CP_KEY}=false."
    if values.get(PACKED_KEY) is False:
        rule = "must be true with dynamic context parallelism"
        findings.problem(PACKED_KEY, rule, False, remedy)
    if values.flag(f"{MEGATRON_KEY}.pad_to_length"):
        rule = "must be false with dynamic context parallelism"
        findings.problem(f"{MEGATRON_KEY}.pad_to_length", rule, True, remedy)
    if (values.integer(VIRTUAL_KEY) or 1) > 1:
        rule = "must be null with dynamic context parallelism"
        findings.problem(VIRTUAL_KEY, rule, values.get(VIRTUAL_KEY), remedy)
    longest = values.integer(f"{MEGATRON_KEY}.max_seqlen_per_dp_cp_rank")
    if longest is None or longest < 1:
        findings.problem(
            f"{MEGATRON_KEY}.max_seqlen_per_dp_cp_rank",
            "must be >= 1 with dynamic context parallelism",
            longest,
            "Use the tokens of a micro-batch.",
        )


def _check_schedule(values: ConfigValues, findings: Findings) -> None:
    # megatron/core/parallel_state.py
    virtual, pipeline = values.integer(VIRTUAL_KEY), values.integer(PP_KEY) or 1
    if virtual is not None and pipeline < 2:
        findings.problem(
            VIRTUAL_KEY, f"must be null without a pipeline ({PP_KEY} is {pipeline})", virtual,
            f"Set {PP_KEY} to 2 or more, or {VIRTUAL_KEY}=null.",
        )  # fmt: skip


def _check_recompute(values: ConfigValues, findings: Findings) -> None:
    # megatron/core/transformer/transformer_config.py, __post_init__
    granularity = values.get(f"{TRANSFORMER_KEY}.recompute_granularity")
    method = values.get(f"{TRANSFORMER_KEY}.recompute_method")
    num_layers = values.integer(f"{TRANSFORMER_KEY}.recompute_num_layers")
    if granularity not in (None, "full", "selective"):
        findings.problem(
            f"{TRANSFORMER_KEY}.recompute_granularity", "must be full, selective or null",
            granularity, "Use full to save most.",
        )  # fmt: skip
    if granularity == "full" and method not in ("uniform", "block"):
        findings.problem(
            f"{TRANSFORMER_KEY}.recompute_method", "must be uniform or block with full recompute",
            method, "Use uniform.",
        )  # fmt: skip
    if granularity == "full" and (num_layers is None or num_layers < 1):
        findings.problem(
            f"{TRANSFORMER_KEY}.recompute_num_layers", "must be >= 1 with full recompute",
            num_layers, "Use 1.",
        )  # fmt: skip
    if granularity == "selective" and num_layers is not None:
        findings.problem(
            f"{TRANSFORMER_KEY}.recompute_num_layers", "must be null with selective recompute",
            num_layers, "Set it to null.",
        )  # fmt: skip


def _check_adapters(values: ConfigValues, findings: Findings) -> None:
    rank = values.integer(f"{MODEL_KEY}.lora.rank") or 0
    if rank < 1:
        return
    # verl/workers/config/megatron_peft.py: adapters come from Megatron-Bridge.
    if values.flag(f"{MEGATRON_KEY}.vanilla_mbridge"):
        findings.problem(
            f"{MEGATRON_KEY}.vanilla_mbridge", f"must be false with LoRA (rank {rank})", True,
            "Leave it at false.",
        )  # fmt: skip
    # transformer_impl.py, sync_and_extract_delta
    backend = values.text(f"{ROLLOUT_KEY}.checkpoint_engine.backend")
    if backend == "delta_sharded":
        findings.problem(
            f"{ROLLOUT_KEY}.checkpoint_engine.backend",
            f"must not be delta_sharded with LoRA (rank {rank})", backend, "Use naive or nccl.",
        )  # fmt: skip


def _check_servers(values: ConfigValues, findings: Findings) -> None:
    # verl/workers/config/rollout.py, RolloutConfig.__post_init__
    pipeline = values.integer(f"{ROLLOUT_KEY}.pipeline_model_parallel_size") or 1
    if pipeline > 1:
        findings.problem(
            f"{ROLLOUT_KEY}.pipeline_model_parallel_size", "must be 1: verl cuts SGLang by tensors",
            pipeline, f"Use a larger {ROLLOUT_TP_KEY}.",
        )  # fmt: skip
    expert = values.integer(f"{ROLLOUT_KEY}.expert_parallel_size") or 1
    tensor = values.integer(ROLLOUT_TP_KEY) or 1
    data = values.integer(f"{ROLLOUT_KEY}.data_parallel_size") or 1
    if expert > 1 and expert != tensor * data:
        findings.problem(
            f"{ROLLOUT_KEY}.expert_parallel_size",
            f"must be 1 or tensor x data parallelism of the servers ({tensor} x {data})", expert,
            f"Use {tensor * data}.",
        )  # fmt: skip
    # async_sglang_server.py
    quantization = values.get(f"{ROLLOUT_KEY}.quantization")
    if quantization not in (None, "fp8"):
        findings.problem(
            f"{ROLLOUT_KEY}.quantization", "must be fp8 or null", quantization, "Use fp8.",
        )  # fmt: skip


def _check_router_replay(values: ConfigValues, findings: Findings) -> None:
    # verl/utils/config.py, _validate_router_replay_config
    mode = values.text(f"{MEGATRON_KEY}.router_replay.mode")
    if mode == "R2" and values.flag("algorithm.rollout_correction.bypass_mode"):
        findings.problem(
            "algorithm.rollout_correction.bypass_mode",
            "must be false with router replay R2, which records in the pass that it skips", True,
            "Set it to false, or use R3.",
        )  # fmt: skip


def _check_fused(values: ConfigValues, findings: Findings) -> None:
    if not values.flag(f"{MODEL_KEY}.use_fused_kernels"):
        return
    # transformer_impl.py, _maybe_enable_fused_kernels: verl goes on without, and memory grows.
    if values.get(PACKED_KEY) is False or values.flag(f"{MODEL_KEY}.mtp.enable"):
        findings.warn(
            f"{MODEL_KEY}.use_fused_kernels has no effect without {PACKED_KEY}, or with "
            f"{MODEL_KEY}.mtp.enable."
        )
    # The same file, forward_step
    if values.flag("actor_rollout_ref.actor.calculate_sum_pi_squared"):
        findings.problem(
            "actor_rollout_ref.actor.calculate_sum_pi_squared",
            "must be false with fused kernels, which never hold all logits", True,
            f"Set it to false, or {MODEL_KEY}.use_fused_kernels=false.",
        )  # fmt: skip
