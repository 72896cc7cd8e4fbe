"""From overrides to text: every configuration that can be planned, and messages for the others."""

from __future__ import annotations

import copy as copy_module
import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from megatron_agent.cli import main
from megatron_agent.config import ConfigProblemsError, Findings, as_plain, compose_config
from megatron_agent.config.overrides import group_options
from megatron_agent.config.rules.batches import FORWARD_TOKENS_KEYS, TOKENS_KEY
from megatron_agent.config.values import ConfigValues
from megatron_agent.plan.command import checked_job, job_from, plan_layout
from megatron_agent.plan.plan import make_plan, refused
from megatron_agent.plan.records import GIB
from megatron_agent.plan.report import plan_text

pytestmark = pytest.mark.unit

GPU_CLUSTERS = [name for name in group_options("cluster") if name != "cpu"]
MODELS = [name for name in group_options("model") if name != "tiny"]
EXPERIMENTS = [
    name for name in group_options("experiment") if name not in ("demo", "frozenlake_cpu")
]
MEGATRON = "actor_rollout_ref.actor.megatron"
FOUR_BY_TWO = (
    "env=webshop",
    "data.max_response_length=512",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096",
    f"{MEGATRON}.tensor_model_parallel_size=4",
    f"{MEGATRON}.pipeline_model_parallel_size=2",
    f"{MEGATRON}.param_offload=true",
    f"{MEGATRON}.optimizer_offload=true",
    f"{MEGATRON}.override_transformer_config.recompute_granularity=full",
    f"{MEGATRON}.override_transformer_config.recompute_method=uniform",
    f"{MEGATRON}.override_transformer_config.recompute_num_layers=1",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_for_gpus_fits_as_it_stands_with_room_to_be_wrong(name: str) -> None:
    job = job_from([f"experiment={name}"])
    assert refused(job) == ()
    plan = make_plan(job)
    assert plan.problems == ()
    assert job.usable_bytes - plan.memory.peak.total >= 5 * GIB


@pytest.mark.parametrize(
    ("cluster", "model"),
    list(itertools.zip_longest(GPU_CLUSTERS, MODELS, fillvalue="16x8_h200")),
)
def test_every_cluster_and_every_model_can_be_planned(cluster: str, model: str) -> None:
    job = job_from([f"model={model}", f"cluster={cluster}", *FOUR_BY_TWO])
    nodes = int(cluster.split("x")[0])
    assert (job.cluster.num_nodes, job.layout.num_gpus) == (nodes, 8 * nodes)
    assert refused(job) == ()
    assert make_plan(job).problems == ()


def test_the_command_prints_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "experiment=webshop_7b"]) == 0
    assert "GiB on the fullest GPU" in capsys.readouterr().out


def test_the_exit_code_tells_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["experiment=webshop_7b", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=65536"]
    assert main(["plan", *overrides, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_a_search_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "experiment=webshop_7b", "--search", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fitting"][0]["fits"] is True


@pytest.fixture(scope="module")
def webshop_7b() -> Mapping[str, Any]:
    """One configuration, composed once; `with_changes` sets values on a copy."""
    return as_plain(compose_config(["experiment=webshop_7b"]))


def with_changes(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> ConfigValues:
    copy: Any = copy_module.deepcopy(tree)
    for key, value in changes.items():
        *parents, name = key.split(".")
        node = copy
        for parent in parents:
            node = node[parent]
        node[name] = value
    return ConfigValues(copy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster.hardware": None}, r"cluster.hardware must state the machines.*1x8_h100"),
        (
            {"cluster.hardware.gpu.sustained_matmul": 1.5},
            r"cluster.hardware.gpu.sustained_matmul must be in \(0, 1\], got 1.5",
        ),
        (
            {"plan.model_shape": None},
            r"plan.model_shape must name a shape while .*model=qwen2p5_7b",
        ),
        ({"plan.model_shape": "qwen2"}, r"plan.model_shape must be one of .*got 'qwen2'"),
        ({"plan.mean_episode_steps": 0}, r"plan.mean_episode_steps must be >= 1, got 0"),
        (
            {f"{MEGATRON}.use_megatron_fsdp": True},
            r"use_megatron_fsdp must be False to be planned, got True. Its bytes and seconds",
        ),
        (
            {f"{MEGATRON}.tensor_model_parallel_size": 8},
            r"actor.megatron must be a layout that the model allows \(TP8 does not divide num_att",
        ),
        (
            {"actor_rollout_ref.rollout.tensor_model_parallel_size": 8},
            r"rollout.tensor_model_parallel_size must be a layout .*\(rollout TP8 does not divide",
        ),
        (
            {"plan.model_shape": "qwen3-30b-a3b", "actor_rollout_ref.model.lora.rank": 8},
            r"lora.rank must be 0 to be planned for a mixture of experts, got 8",
        ),
        (
            {"data.max_prompt_length": None},
            r"data.max_prompt_length must be given, got None",
        ),
        (
            {"actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload": True},
            r"optimizer_cpu_offload must be null or False to be planned, got True",
        ),
        (
            {f"{MEGATRON}.override_transformer_config.num_layers_in_first_pipeline_stage": 13},
            r"num_layers_in_first_pipeline_stage must be null to be planned, got 13",
        ),
        (
            {f"{MEGATRON}.override_ddp_config.grad_reduce_in_fp32": False},
            r"grad_reduce_in_fp32 must be null or True to be planned, got False",
        ),
        ({f"{MEGATRON}.use_remove_padding": False}, r"use_remove_padding must be True to be plann"),
        (
            {
                "plan.model_shape": "qwen3-30b-a3b",
                f"{MEGATRON}.sequence_parallel": False,
            },
            r"must be a layout that .*\(TP2 needs sequence_parallel in a mixture of experts\)",
        ),
        (
            {"actor_rollout_ref.rollout.gpu_memory_utilization": 1.5},
            r"gpu_memory_utilization must be in \(0, 1\], got 1.5",
        ),
        (
            {"trainer.n_gpus_per_node": 16},
            r"trainer.n_gpus_per_node must be <= cluster.hardware.gpus_per_node \(8\), got 16",
        ),
        (
            {"plan.mean_episode_steps": 16.0},
            r"plan.mean_episode_steps must be <= env.max_steps \(15\), got 16.0",
        ),
        (
            {"plan.mean_prompt_tokens": 5000},
            r"plan.mean_prompt_tokens must be <= data.max_prompt_length \(4096\), got 5000",
        ),
        (
            {"plan.mean_response_tokens": 513},
            r"plan.mean_response_tokens must be <= data.max_response_length \(512\), got 513",
        ),
        (
            {
                "data.max_prompt_length": 32768,
                **dict.fromkeys((TOKENS_KEY, *FORWARD_TOKENS_KEYS), 65536),
            },
            r"plus data.max_response_length must be <= the model's max_pos.* \(32768\), got 33280",
        ),
        ({"algorithm.use_kl_in_reward": True}, r"algorithm.use_kl_in_reward must be false"),
        ({"trainer.nnodes": 2}, r"trainer.nnodes plus .* \(0\) must be <= cluster.hardware.num"),
    ],
)
def test_what_cannot_be_planned_is_said(
    webshop_7b: Mapping[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigProblemsError, match=message):
        plan_layout(checked_job(with_changes(webshop_7b, changes), Findings()))


def test_a_search_replaces_a_layout_that_does_not_divide() -> None:
    changes = ["experiment=webshop_72b", "cluster=1x8_h200"]
    with pytest.raises(ConfigProblemsError, match=r"trainer.n_gpus_per_node times"):
        job_from(changes)
    assert job_from(changes, to_search=True).layout.num_gpus == 8


def test_a_search_replaces_too_small_micro_batches_but_not_faults(
    webshop_7b: Mapping[str, Any],
) -> None:
    tokens = {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 100}
    checked_job(with_changes(webshop_7b, tokens), Findings(), to_search=True)
    wrong = with_changes(webshop_7b, {f"{MEGATRON}.tensor_model_parallel_size": "two"})
    with pytest.raises(ConfigProblemsError, match=r"tensor_model_parallel_size must be an int"):
        checked_job(wrong, Findings(), to_search=True)


def test_verls_own_default_is_taken_where_nothing_is_given(webshop_7b: Mapping[str, Any]) -> None:
    values = with_changes(webshop_7b, {"actor_rollout_ref.rollout.max_num_seqs": None})
    assert checked_job(values, Findings()).rollout.max_sequences == 256


def test_servers_with_nodes_of_their_own(webshop_7b: Mapping[str, Any]) -> None:
    changes = {
        "cluster.hardware.num_nodes": 2,
        "actor_rollout_ref.rollout.nnodes": 1,
        "trainer.v1.trainer_mode": "separate_async",
    }
    job = checked_job(with_changes(webshop_7b, changes), Findings())
    assert (job.layout.num_gpus, job.rollout.separate_gpus) == (8, 8)
    text = " ".join(plan_text(make_plan(job)).split())
    assert "8 x H100-80 for the trainer and 8 for the servers" in text


def test_expectations_that_are_not_given_are_half_of_the_limit(
    webshop_7b: Mapping[str, Any],
) -> None:
    changes = {"plan.mean_episode_steps": None, "plan.mean_prompt_tokens": None}
    workload = checked_job(with_changes(webshop_7b, changes), Findings()).workload
    assert workload.mean_steps == workload.max_steps / 2
    assert workload.mean_prompt_tokens == workload.max_prompt_tokens / 2


def test_settings_arrive_in_the_job() -> None:
    actor = "actor_rollout_ref.actor"
    job = job_from(
        [
            "experiment=webshop_72b",
            f"{actor}.optim.use_precision_aware_optimizer=true",
            f"{actor}.optim.main_grads_dtype=bf16",
            f"{actor}.optim.exp_avg_dtype=bf16",
            f"{actor}.optim.exp_avg_sq_dtype=bf16",
            f"{actor}.megatron.override_transformer_config.recompute_granularity=full",
            f"{actor}.megatron.override_transformer_config.recompute_method=uniform",
            f"{actor}.megatron.override_transformer_config.recompute_num_layers=2",
            f"{actor}.entropy_coeff=0.01",
            "actor_rollout_ref.rollout.quantization=fp8",
        ]
    )
    training = job.training
    assert (training.grad_bytes, training.optimizer_bytes, training.recompute_layers) == (2, 8, 2)
    assert training.entropy_in_update
    assert training.has_reference
    assert training.reference_offload
    assert training.num_mini_batches == 4
    assert job.rollout.weight_bytes == 1
    assert (job.layout.tensor, job.layout.expert_tensor, job.layout.data) == (8, 8, 4)
    assert (job.workload.mean_steps, job.workload.max_steps) == (7.0, 15)


def test_names_of_clusters_say_what_they_are() -> None:
    assert all(re.fullmatch(r"\d+x8_h(100|200)", name) for name in GPU_CLUSTERS)
    assert len(GPU_CLUSTERS) == 10
