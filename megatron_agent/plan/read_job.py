"""From a composed configuration to a job."""

from __future__ import annotations

from pathlib import Path

from megatron_agent.config.findings import Findings
from megatron_agent.config.plan_settings import (
    HARDWARE_KEY,
    HardwareSettings,
    PlanSettings,
    read_hardware,
    read_plan_settings,
)
from megatron_agent.config.rules.batches import MINI_BATCH_KEY, TOKENS_KEY
from megatron_agent.config.rules.combinations import PACKED_KEY, TRANSFORMER_KEY
from megatron_agent.config.rules.layout import (
    CP_KEY,
    MEGATRON_KEY,
    PP_KEY,
    ROLLOUT_TP_KEY,
    TP_KEY,
)
from megatron_agent.config.values import ConfigValues
from megatron_agent.errors import ConfigError
from megatron_agent.plan.layout import Layout
from megatron_agent.plan.records import Cluster, Gpu, Job, Rollout, Training, Workload
from megatron_agent.plan.shapes import SHAPE_KEY, ModelShape, read_shape, shipped_shape

MODEL_PATH_KEY = "actor_rollout_ref.model.path"
ROLLOUT_KEY = "actor_rollout_ref.rollout"
LORA_KEY = "actor_rollout_ref.model.lora.rank"
OPTIMIZER_KEY = "actor_rollout_ref.actor.optim"
OPTIMIZER_OVERRIDES_KEY = f"{OPTIMIZER_KEY}.override_optimizer_config"
HALF_NAMES = ("bf16", "bfloat16")

PLANNED_AT: dict[str, tuple[object, ...]] = {
    f"{MEGATRON_KEY}.use_distributed_optimizer": (True,),
    f"{MEGATRON_KEY}.use_megatron_fsdp": (False,),
    f"{MEGATRON_KEY}.dynamic_context_parallel": (False,),
    f"{ROLLOUT_KEY}.data_parallel_size": (1,),
    f"{ROLLOUT_KEY}.disaggregation.enabled": (False,),
    f"{TRANSFORMER_KEY}.recompute_method": (None, "uniform"),
    f"{OPTIMIZER_KEY}.optimizer": ("adam",),
    f"{OPTIMIZER_OVERRIDES_KEY}.optimizer_cpu_offload": (None, False),
    f"{OPTIMIZER_OVERRIDES_KEY}.use_precision_aware_optimizer": (None, False),
    f"{MEGATRON_KEY}.override_ddp_config.grad_reduce_in_fp32": (None, True),
    f"{TRANSFORMER_KEY}.num_layers_in_first_pipeline_stage": (None,),
    f"{TRANSFORMER_KEY}.num_layers_in_last_pipeline_stage": (None,),
    f"{TRANSFORMER_KEY}.account_for_embedding_in_pipeline_split": (None, False),
    f"{TRANSFORMER_KEY}.account_for_loss_in_pipeline_split": (None, False),
    f"{TRANSFORMER_KEY}.pipeline_model_parallel_layout": (None,),
    PACKED_KEY: (True,),
}
"""Settings that work in a run and whose bytes are not modelled here."""


def read_job(values: ConfigValues, findings: Findings) -> Job | None:
    """Read what a plan depends on.

    Args:
        values: the composed configuration.
        findings: receives what is missing or not modelled.

    Returns:
        The job; None when something was recorded.
    """
    num_problems = len(findings.problems)
    plan, hardware = read_plan_settings(values, findings), read_hardware(values, findings)
    if hardware is None and values.get(HARDWARE_KEY) is None:
        remedy = "Choose a cluster of GPUs, e.g. cluster=1x8_h100."
        findings.problem(HARDWARE_KEY, "must state the machines to plan for", None, remedy)
    for key, allowed in PLANNED_AT.items():
        value = values.get(key, allowed[0])
        if value not in allowed:
            remedy = "Its bytes and seconds are not modelled; plan without it."
            findings.problem(key, f"must be {_words(allowed)} to be planned", value, remedy)
    shape = _read_shape(values, plan, findings) if plan is not None else None
    numbers = _Numbers(values, findings)
    layout, training = _layout(values, numbers), _training(values, numbers)
    rollout = _rollout(values, numbers)
    workload = _workload(numbers, plan) if plan is not None else None
    if shape is not None and shape.num_experts and training.lora_rank:
        rule = "must be 0 to be planned for a mixture of experts"
        findings.problem(LORA_KEY, rule, training.lora_rank, "Plan it without adapters.")
    if shape is not None and workload is not None:
        _check_positions(shape, workload, findings)
    if len(findings.problems) > num_problems:
        return None
    assert plan is not None and hardware is not None and shape is not None and workload is not None
    return Job(
        shape=shape,
        cluster=_cluster(hardware),
        layout=layout,
        training=training,
        rollout=rollout,
        workload=workload,
        memory_margin=plan.memory_margin,
    )


class _Numbers:
    """Integers that must be there; what is not is recorded and counts as 1 until then."""

    def __init__(self, values: ConfigValues, findings: Findings) -> None:
        self._values, self._findings = values, findings

    def of(self, key: str, default: int | None = None) -> int:
        number = self._values.integer(key)
        if number is None:
            number = default
        if number is None or number < 1:
            self._findings.problem(key, "must be an integer >= 1 to be planned", number, "Set it.")
            return 1
        return number


def _read_shape(values: ConfigValues, plan: PlanSettings, findings: Findings) -> ModelShape | None:
    path = values.text(MODEL_PATH_KEY)
    config = Path(path or ".").expanduser() / "config.json"
    try:
        if path and config.is_file():
            return read_shape(config, config.parent.name)
        if plan.model_shape is not None:
            return shipped_shape(plan.model_shape)
    except ConfigError as error:
        findings.problems.append(error)
        return None
    findings.problem(
        SHAPE_KEY, f"must name a shape while {MODEL_PATH_KEY} ({path}) is not there", None,
        "Choose a model with a shape, e.g. model=qwen2p5_7b.",
    )  # fmt: skip
    return None


def _check_positions(shape: ModelShape, workload: Workload, findings: Findings) -> None:
    if workload.max_row_tokens > shape.max_positions:
        findings.problem(
            "data.max_prompt_length",
            f"plus data.max_response_length must be <= the model's max_position_embeddings "
            f"({shape.max_positions})",
            workload.max_row_tokens,
            "Shorten one of them, or use a model with a longer context.",
        )


def _cluster(hardware: HardwareSettings) -> Cluster:
    gpu = hardware.gpu
    return Cluster(
        gpu=Gpu(
            name=gpu.name,
            memory_gib=gpu.memory_gib,
            bf16_tflops=gpu.bf16_tflops,
            memory_gb_s=gpu.memory_gb_s,
            nvlink_gb_s=gpu.nvlink_gb_s,
            sustained_matmul=gpu.sustained_matmul,
        ),
        gpus_per_node=hardware.gpus_per_node,
        num_nodes=hardware.num_nodes,
        network_gb_s=hardware.network_gb_s,
        pcie_gb_s=hardware.pcie_gb_s,
        host_memory_gib=hardware.host_memory_gib,
    )


def _layout(values: ConfigValues, numbers: _Numbers) -> Layout:
    tensor = numbers.of(TP_KEY)
    return Layout(
        num_gpus=numbers.of("trainer.nnodes") * numbers.of("trainer.n_gpus_per_node"),
        tensor=tensor,
        pipeline=numbers.of(PP_KEY),
        context=numbers.of(CP_KEY),
        expert=numbers.of(f"{MEGATRON_KEY}.expert_model_parallel_size", 1),
        expert_tensor=numbers.of(f"{MEGATRON_KEY}.expert_tensor_parallel_size", tensor),
        virtual_pipeline=numbers.of(f"{MEGATRON_KEY}.virtual_pipeline_model_parallel_size", 1),
    )


def _training(values: ConfigValues, numbers: _Numbers) -> Training:
    precision_aware = values.flag(f"{OPTIMIZER_KEY}.use_precision_aware_optimizer")

    def state_bytes(name: str) -> int:
        is_half = precision_aware and values.get(f"{OPTIMIZER_KEY}.{name}") in HALF_NAMES
        return 2 if is_half else 4

    budget = numbers.of(TOKENS_KEY)
    is_full = values.get(f"{TRANSFORMER_KEY}.recompute_granularity") == "full"
    # Selective recompute of attention saves nothing where flash attention saves it already.
    recompute = numbers.of(f"{TRANSFORMER_KEY}.recompute_num_layers", 1) if is_full else 0
    num_groups = numbers.of("data.train_batch_size")
    return Training(
        micro_batch_tokens=budget,
        log_prob_tokens=numbers.of(f"{ROLLOUT_KEY}.log_prob_max_token_len_per_gpu", budget),
        num_mini_batches=max(num_groups // numbers.of(MINI_BATCH_KEY, num_groups), 1),
        num_epochs=numbers.of("actor_rollout_ref.actor.ppo_epochs", 1),
        sequence_parallel=values.flag(f"{MEGATRON_KEY}.sequence_parallel"),
        recompute_layers=recompute,
        param_offload=values.flag(f"{MEGATRON_KEY}.param_offload"),
        optimizer_offload=values.flag(f"{MEGATRON_KEY}.optimizer_offload"),
        reference_offload=values.flag("actor_rollout_ref.ref.megatron.param_offload"),
        fused_kernels=values.flag("actor_rollout_ref.model.use_fused_kernels"),
        entropy_in_update=bool(values.number("actor_rollout_ref.actor.entropy_coeff")),
        has_reference=values.flag("actor_rollout_ref.actor.use_kl_loss"),
        has_critic=values.flag("critic.enable"),
        grad_bytes=state_bytes("main_grads_dtype"),
        optimizer_bytes=4 + state_bytes("exp_avg_dtype") + state_bytes("exp_avg_sq_dtype"),
        lora_rank=max(values.integer(LORA_KEY) or 0, 0),
    )


def _rollout(values: ConfigValues, numbers: _Numbers) -> Rollout:
    separate = 0
    if values.text("trainer.v1.trainer_mode") == "separate_async":
        nodes = numbers.of(f"{ROLLOUT_KEY}.nnodes")
        separate = nodes * numbers.of(f"{ROLLOUT_KEY}.n_gpus_per_node")
    megabytes = numbers.of(f"{ROLLOUT_KEY}.checkpoint_engine.update_weights_bucket_megabytes", 2048)
    return Rollout(
        tensor=numbers.of(ROLLOUT_TP_KEY),
        memory_fraction=values.number(f"{ROLLOUT_KEY}.gpu_memory_utilization") or 0.0,
        max_sequences=numbers.of(f"{ROLLOUT_KEY}.max_num_seqs", 256),
        weight_bytes=1 if values.get(f"{ROLLOUT_KEY}.quantization") == "fp8" else 2,
        bucket_bytes=megabytes * 2**20,
        frees_memory=values.get(f"{ROLLOUT_KEY}.free_cache_engine") is not False,
        separate_gpus=separate,
        cuda_graphs=not values.flag(f"{ROLLOUT_KEY}.enforce_eager"),
    )


def _workload(numbers: _Numbers, plan: PlanSettings) -> Workload:
    max_steps = numbers.of("env.max_steps")
    max_prompt = numbers.of("data.max_prompt_length")
    max_response = numbers.of("data.max_response_length")
    return Workload(
        num_groups=numbers.of("data.train_batch_size"),
        group_size=numbers.of("env.rollout.n"),
        max_steps=max_steps,
        mean_steps=plan.mean_episode_steps or max_steps / 2,
        max_prompt_tokens=max_prompt,
        mean_prompt_tokens=plan.mean_prompt_tokens or max_prompt / 2,
        max_response_tokens=max_response,
        mean_response_tokens=plan.mean_response_tokens or max_response / 2,
        env_step_s=plan.env_step_s,
        row_spread=plan.row_spread,
    )


def _words(allowed: tuple[object, ...]) -> str:
    return " or ".join("null" if value is None else repr(value) for value in allowed)
