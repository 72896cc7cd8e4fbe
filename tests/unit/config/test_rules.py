"""Every rule on values: what breaks it, and what the message says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import psutil  # type: ignore[import-untyped]
import pytest

from megatron_agent.config import Findings, compose_config
from megatron_agent.config.rules.trainer import LOGGERS
from megatron_agent.config.validation import check_config
from megatron_agent.config.verl_tree import verl_root
from megatron_agent.credit import registry
from megatron_agent.tasks import generate_tasks, write_tasks

pytestmark = pytest.mark.unit

Messages = Callable[..., list[str]]

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MEGATRON = f"{ACTOR}.megatron"


def assert_one(messages: list[str], pattern: str) -> None:
    found = [message for message in messages if re.search(pattern, message)]
    assert len(found) == 1, f"{pattern!r} not once in {messages}"


def test_the_default_configuration_is_fine(findings_of: Callable[..., Findings]) -> None:
    findings = findings_of()
    assert findings.problems == []
    assert findings.warnings == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        # our keys: types, bounds, choices
        ("algorithm.gamma=-0.5", r"algorithm.gamma must be in \[0, 1\], got -0.5. Use 0.95."),
        ("algorithm.gamma=1.5", r"algorithm.gamma must be in \[0, 1\], got 1.5"),
        ("algorithm.gamma=nan", r"algorithm.gamma must be in \[0, 1\], got nan"),
        ("algorithm.gamma=high", r"algorithm.gamma must be a number, got 'high'"),
        (
            "algorithm.filter_at_bound=go",
            r"algorithm.filter_at_bound must be one of train, stop, got 'go'",
        ),
        ("env.max_steps=0", r"env.max_steps must be >= 1, got 0. Allow at least one step."),
        ("env.max_steps=2.5", r"env.max_steps must be an integer, got 2.5"),
        ("env.history_length=-1", r"env.history_length must be >= 0, got -1"),
        ("env.prompt_file=3", r"env.prompt_file must be text or null, got 3"),
        (
            "env.prompt_file=no/such.txt",
            r"env.prompt_file must be a prompt template for frozenlake \(prompt file no/such.txt",
        ),
        ("env.env_name=gym:Taxx-v4", r"no Gymnasium environment is named 'Taxx-v4'.*mean: `Taxi`"),
        ("env.env_name=gym:Pendulum-v1", r"must load \(.*actions must be Discrete or Text"),
        ("env.env_name=no.such:Class", r"must load \(.*No module named 'no'.*on PYTHONPATH"),
        ("env.rollout.n=0", r"env.rollout.n must be >= 1, got 0. Use a group size such as 8."),
        ("env.rollout.redundancy=-1", r"env.rollout.redundancy must be >= 0, got -1. Use 0 for no"),
        ("env.step_timeout_s=0", r"env.step_timeout_s must be > 0, got 0"),
        ("env.worker_memory_limit=lots", r"worker_memory_limit must be bytes or a size .*'lots'"),
        ("env.worker_memory_limit=1MiB", r"env.worker_memory_limit must be at least 64MiB, got"),
        ("env.worker_memory_limit=true", r"env.worker_memory_limit must be an integer or text or"),
        ("env.max_failure_rate=2", r"env.max_failure_rate must be in \[0, 1\], got 2"),
        ("env.options=4", r"env.options must be a mapping, got 4"),
        ("env.tasks.num_train=0", r"env.tasks.num_train must be >= 1, got 0"),
        ("algorithm.gigpo.mode=mean_std", r"mode must be one of .*Did you mean 'mean_std_norm'"),
        ("algorithm.gigpo.similarity_thresh=0", r"similarity_thresh must be in \(0, 1\], got 0"),
        ("algorithm.gigpo.step_advantage_w=-1", r"step_advantage_w must be >= 0, got -1"),
        ("algorithm.gigpo.similarity_measure=word", r"similarity_measure must be one of character"),
        ("algorithm.gigpo.similarity_keep_numbers=1", r"keep_numbers must be true or false, got 1"),
        ("algorithm.gigpo.similarity_max_comparisons=0", r"max_comparisons must be >= 1, got 0. U"),
        ("algorithm.gigpo.similarity_max_comparisons=1e6", r"comparisons must be an integer, got"),
        ("algorithm.gigpo.repeated_states=first", r"must be one of .*Did you mean 'first_visit'"),
        ("algorithm.hgpo.history_length=-1", r"algorithm.hgpo.history_length must be >= 0, got -1"),
        ("algorithm.hgpo.length_weight_alpha=-1", r"length_weight_alpha must be >= 0, got -1"),
        ("algorithm.hgpo.mode=mean", r"algorithm.hgpo.mode must be one of .*'mean_norm'"),
        ("algorithm.hgpo.base_group=1", r"hgpo.base_group must be true or false, got 1"),
        ("+algorithm.hgpo.weight_type=length", r"algorithm.hgpo.weight_type is not a known key"),
        ("algorithm.lam=2", r"algorithm.lam must be in \[0, 1\], got 2. Use 0.95."),
        ("algorithm.whiten_advantages=1", r"whiten_advantages must be true or false, got 1"),
        ("algorithm.row_weights=steps", r"row_weights must be one of .*Did you mean 'step'"),
        ("algorithm.episode_reward.normalize_by_length=1", r"by_length must be true or false"),
        ("algorithm.adv_estimator=gae", r"critic.enable must be true: gae needs .*credit=gae, whi"),
        (f"{ACTOR}.invalid_action_penalty_coef=-1", rf"{ACTOR}.\w+_coef must be >= 0, got -1"),
        (f"{ACTOR}.use_invalid_action_penalty=1", rf"{ACTOR}.use_\w+ must be true or false, got 1"),
        (f"{ACTOR}.invalid_action_penalty_mode=x", rf"{ACTOR}.\w+_mode must be one of separate"),
        (f"{ACTOR}.invalid_action_penalty_reach=all", rf"{ACTOR}.\w+_reach must be one of own_ste"),
        ("algorithm.adv_estimator=gigpoo", r"adv_estimator must be one of .*Did you mean 'gigpo'"),
        ("algorithm.use_kl_in_reward=true", r"algorithm.use_kl_in_reward must be false"),
        # groups and batches
        (f"{ROLLOUT}.n=4", r"rollout.n must equal env.rollout.n \(8\), got 4"),
        ("data.train_batch_size=0", r"data.train_batch_size must be >= 1, got 0. Use 8."),
        (f"{ACTOR}.ppo_mini_batch_size=3", r"ppo_mini_batch_size must divide .* got 3. Use 2."),
        (f"{ACTOR}.use_dynamic_bsz=false", r"actor.use_dynamic_bsz must be true"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu=100", r"must hold one row .*280 tokens\), got 100"),
        (f"{ROLLOUT}.log_prob_max_token_len_per_gpu=9", r"log_prob_max\S+ must hold one row .*t 9"),
        ("env.tasks.num_train=4", r"data.train_batch_size must be <= the number of training tasks"),
        ("data.gen_batch_size=3", r"gen_batch_size must divide .*\(8\), got 3. Leave it at null."),
        (f"{ACTOR}.ppo_epochs=0", r"actor.ppo_epochs must be >= 1, got 0"),
        (f"{ACTOR}.loss_agg_mode=mean", r"loss_agg_mode must be one of token-mean, .*got 'mean'"),
        ("trainer.v1.trainer_mode=separate_async", r"sync_step times .*mini_batch_size \(8\) must"),
        ("data.val_batch_size=0", r"val_batch_size must be >= 1, or null .* got 0. Leave it at nu"),
        ("data.val_batch_size=-1", r"val_batch_size must be >= 1, or null .* got -1"),
        ("trainer.total_epochs=0", r"total_epochs times .*\(128\) must be >= .*\(100\), got 0"),
        # sampling
        (f"{ROLLOUT}.val_kwargs.n=0", r"val_kwargs.n must be >= 1, got 0. Use 1."),
        (f"{ROLLOUT}.val_kwargs.do_sample=false", r"do_sample must be true .* the temperature al"),
        (f"{ROLLOUT}.calculate_log_probs=false", r"max_rollout_probs_diff must be null without"),
        ("trainer.v1.trainer_mode=colocate_async", r"probs_diff must be null in mode colocate_as"),
        (f"{ROLLOUT}.val_kwargs.temperature=-1", r"val_kwargs.temperature must be >= 0, got -1. U"),
        (f"{ROLLOUT}.val_kwargs.top_p=2", r"val_kwargs.top_p must be in \(0, 1\], got 2. Use 1.0"),
        (f"{ROLLOUT}.val_kwargs.top_p=0", r"val_kwargs.top_p must be in \(0, 1\], got 0"),
        (f"{ROLLOUT}.val_kwargs.top_k=0", r"val_kwargs.top_k must be >= 1, or -1 .*got 0. Use -1."),
        (f"{ROLLOUT}.top_p=0", r"rollout.top_p must be in \(0, 1\], got 0"),
        (f"{ROLLOUT}.top_k=0", r"rollout.top_k must be >= 1, or -1 for all tokens, got 0"),
        (f"{ROLLOUT}.gpu_memory_utilization=0", r"utilization must be in \(0, 1\], got 0. Use 0.6"),
        (f"{ROLLOUT}.gpu_memory_utilization=5", r"utilization must be in \(0, 1\], got 5"),
        (f"{ROLLOUT}.agent.num_workers=0", r"agent.num_workers must be >= 1, got 0. Use 1."),
        # the schedule
        (f"{ACTOR}.optim.lr_warmup_init=1", r"warmup_init must be in \[0, actor.*, got 1. Lower"),
        (
            f"{ACTOR}.optim.lr_warmup_steps=100000",
            r"lr_warmup_steps must be < trainer.total_training_steps, which is 100, got 1000",
        ),
        # a machine without a GPU
        ("trainer.device=cuda", r"device must be cpu with cluster=cpu, .*got 'cuda'. Choose a clu"),
        (f"{MEGATRON}.context_parallel_size=2", r"context_parallel_size must be 1 on a CPU.*got 2"),
        ("ray_kwargs.ray_init.num_cpus=8", r"num_cpus must be >= 9 for 2 ranks, .* got 8. Leave"),
        # layout
        (f"{MEGATRON}.tensor_model_parallel_size=0", r"tensor_model_parallel_size must be >= 1"),
        (f"{MEGATRON}.tensor_model_parallel_size=3", r"the model's num_attention_heads"),
        (f"{MEGATRON}.tensor_model_parallel_size=3", r"the model's vocab_size \(512\)"),
        (f"{MEGATRON}.tensor_model_parallel_size=3", r"be a multiple of num_key_value_heads \(2\)"),
        (f"{MEGATRON}.pipeline_model_parallel_size=4", r"the model's num_hidden_layers \(2\)"),
        ("trainer.n_gpus_per_node=3", r"n_gpus_per_node times .*\(2 x 1 x 1 = 2\), got 3"),
        (f"{ROLLOUT}.tensor_model_parallel_size=4", r"divide the number of devices \(2\), got 4"),
        (f"{ROLLOUT}.tensor_model_parallel_size=2", r"must be 1 on a CPU.*got 2"),
        # lengths
        ("data.max_prompt_length=0", r"data.max_prompt_length must be >= 1, got 0"),
        ("data.max_response_length=900", r"the model's max_position_embeddings \(1024\)"),
        (f"{ROLLOUT}.engine_kwargs.sglang.max_total_tokens=200", r"max_total_tokens \(200\)"),
        # the loop
        ("trainer.total_training_steps=0", r"trainer.total_training_steps must be >= 1, got 0"),
        ("trainer.test_freq=0", r"test_freq must be >= 1, or -1 for never, got 0"),
        ("trainer.max_ckpt_to_keep=0", r"trainer.max_ckpt_to_keep must be >= 1, or null"),
        ("trainer.poll_interval_s=0", r"trainer.poll_interval_s must be > 0, got 0"),
        (f"{ACTOR}.optim.lr=-1", r"actor.optim.lr must be >= 0, got -1. Drop the sign."),
        (f"{ACTOR}.optim.clip_grad=-1", r"optim.clip_grad must be >= 0, got -1. Drop the sign."),
        (f"{ACTOR}.clip_ratio=-1", r"actor.clip_ratio must be >= 0, got -1"),
        (f"{ACTOR}.clip_ratio_high=-1", r"actor.clip_ratio_high must be >= 0, got -1"),
        ("trainer.logger=[wandbb]", r"logger must be one of .*got 'wandbb'. Did you mean 'wandb'"),
        ("trainer.logger=[]", r"trainer.logger must be a list of one logger or more, got \[\]"),
        ("trainer.logger=console", r"trainer.logger must be a list .*got 'console'. Use \[console"),
        (f"{ROLLOUT}.temperature=0", r"rollout.temperature must be > 0"),
        (f"{ROLLOUT}.name=vllm", r"rollout.name must be 'sglang' .*got 'vllm'"),
        ("trainer.v1.trainer_mode=synk", r"trainer_mode must be one of .*Did you mean 'sync'"),
        # the environment
        ("env.env_name=frozenlak", r"env_name must .*got 'frozenlak'. Did you mean 'frozenlake'"),
        ("env.memory=windw", r"env.memory must be one of .*Did you mean 'window'"),
        ("env.num_workers=100000", r"env.num_workers must be at most \d+ .*got 100000"),
        ("env.options.size=99", r"env.options must suit frozenlake .*'size'.* from 4 to 8"),
        ("env.options.sise=4", r"env.options must suit frozenlake .*Did you mean 'size'"),
    ],
)  # fmt: skip
def test_a_broken_rule_names_key_rule_and_value(
    problems_of: Messages, override: str, message: str
) -> None:
    assert_one(problems_of(override), message)


def test_two_weights_of_zero_are_refused(problems_of: Messages) -> None:
    messages = problems_of(
        "algorithm.gigpo.step_advantage_w=0", "algorithm.gigpo.episode_advantage_w=0"
    )
    assert_one(messages, "step_advantage_w must not be 0 together with")


@pytest.mark.parametrize(
    "method", ["gigpo", "grpo", "hgpo", "rloo", "reinforce_plus_plus_baseline"]
)
def test_a_group_of_one_is_a_warning(findings_of: Callable[..., Findings], method: str) -> None:
    findings = findings_of("env.rollout.n=1", f"algorithm.adv_estimator={method}")
    assert findings.problems == []
    assert_one(findings.warnings, f"env.rollout.n is 1: {method} compares the members of a group")


@pytest.mark.parametrize(
    ("overrides", "consequence"),
    [
        ([], "every episode advantage is zero"),
        (["algorithm.gigpo.lonely_episode=raw_score"], "every episode is judged by its own return"),
        (
            ["algorithm.adv_estimator=hgpo"],
            "only a state that a session sees again has anything to be compared with",
        ),
        (
            ["algorithm.adv_estimator=hgpo", "algorithm.hgpo.base_group=true"],
            "every episode advantage is zero",
        ),
    ],
)
def test_the_warning_says_what_a_group_of_one_leaves(
    findings_of: Callable[..., Findings], overrides: list[str], consequence: str
) -> None:
    assert_one(
        findings_of("env.rollout.n=1", *overrides).warnings, f"has no peers, so {consequence}"
    )


@pytest.mark.parametrize("method", ["gae", "step_reinforce", "reinforce_plus_plus"])
def test_a_group_of_one_is_fine_without_groups(
    findings_of: Callable[..., Findings], method: str
) -> None:
    overrides = ("env.rollout.n=1", f"algorithm.adv_estimator={method}", "critic.enable=true")
    findings = findings_of(*overrides)
    assert findings.problems == findings.warnings == []


def test_a_penalty_goes_where_the_method_has_a_place_for_it(problems_of: Messages) -> None:
    place = f"{ACTOR}.invalid_action_penalty_mode=step_return"
    assert problems_of(place) == []
    assert_one(
        problems_of("algorithm.adv_estimator=grpo", place),
        "grpo has no step level, got 'step_return'",
    )


def test_similarity_is_for_gigpo(findings_of: Callable[..., Findings]) -> None:
    similarity = "algorithm.gigpo.enable_similarity=true"
    assert findings_of(similarity).warnings == []
    warnings = findings_of(similarity, "algorithm.adv_estimator=hgpo").warnings
    assert_one(warnings, "is read by gigpo alone; hgpo")


def test_repeated_states_are_for_gigpo(findings_of: Callable[..., Findings]) -> None:
    first = "algorithm.gigpo.repeated_states=first_visit"
    assert findings_of(first).warnings == []
    warnings = findings_of(first, "algorithm.adv_estimator=hgpo").warnings
    assert_one(warnings, "is read by gigpo alone; with hgpo each visit of a state counts")


def test_grpo_needs_its_weight(problems_of: Messages) -> None:
    weight = "algorithm.gigpo.episode_advantage_w=0"
    assert problems_of(weight) == problems_of(weight, "algorithm.adv_estimator=rloo") == []
    message = "episode_advantage_w must not be 0 with grpo"
    assert_one(problems_of(weight, "algorithm.adv_estimator=grpo"), message)


def test_a_method_that_does_not_load_is_named(
    problems_of: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("broken", "no_such_module:method", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [broken])
    messages = problems_of("algorithm.adv_estimator=broken")
    assert_one(messages, r"adv_estimator must load, got 'broken'. credit method 'broken' must load")


def test_devices_follow_the_parallel_sizes_on_a_cpu(findings_of: Callable[..., Findings]) -> None:
    sizes = (
        f"{MEGATRON}.tensor_model_parallel_size=1",
        f"{MEGATRON}.pipeline_model_parallel_size=2",
    )
    assert findings_of(*sizes, "cluster.data_parallel_size=2").problems == []


@pytest.mark.parametrize("num_copies", [1, 32])
def test_ray_has_logical_cpus_for_every_rank(
    findings_of: Callable[..., Findings], monkeypatch: pytest.MonkeyPatch, num_copies: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=100 * 10**9))
    size = f"cluster.data_parallel_size={num_copies}"
    assert findings_of(size).problems == []
    ray_init = compose_config([size]).ray_kwargs.ray_init
    assert ray_init.num_gpus == 2 * num_copies
    assert ray_init.num_cpus == 10 + 3 * 2 * num_copies


def test_ranks_beyond_the_memory_of_a_cpu_machine_are_refused(
    problems_of: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=9 * 10**9))
    message = r"n_gpus_per_node \(ranks on one machine\) must be at most 10: .* 9.0 GB .*, got 200"
    assert_one(problems_of("cluster.data_parallel_size=100"), message)
    assert problems_of("cluster.data_parallel_size=5") == []
    elsewhere = "+ray_kwargs.ray_init.address=10.0.0.1:6379"
    assert problems_of("cluster.data_parallel_size=100", elsewhere) == []


def test_a_job_for_other_nodes_is_not_judged_by_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=10**9))
    findings = Findings(runs_here=False)
    check_config(compose_config(), findings)
    assert "trainer.n_gpus_per_node" not in [problem.key for problem in findings.problems]
    assert_one(findings.warnings, "On this machine: trainer.n_gpus_per_node .ranks")


def test_the_loggers_are_those_of_verl() -> None:
    source = (verl_root() / "utils" / "tracking.py").read_text(encoding="utf-8")
    names = re.search(r"supported_backend = \[(.*?)\]", source, re.DOTALL)
    assert names is not None
    assert sorted(LOGGERS) == sorted(re.findall(r'"(\w+)"', names[1]))


def test_an_uneven_pipeline_given_by_hand_is_left_to_megatron(problems_of: Messages) -> None:
    by_hand = f"{MEGATRON}.override_transformer_config.num_layers_in_first_pipeline_stage=1"
    assert problems_of(f"{MEGATRON}.pipeline_model_parallel_size=4", by_hand) == []


def test_a_missing_model_folder_says_how_to_make_one(problems_of: Messages) -> None:
    messages = problems_of("actor_rollout_ref.model.path=no/such")
    assert_one(
        messages,
        "model.path must be an existing folder, got 'no/such'. .*make_policy.py --out no/such",
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", r"no \*.safetensors"),
        ("tokenizer.json", "no tokenizer.json or tokenizer.model"),
    ],
)
def test_an_incomplete_model_folder_is_named(
    problems_of: Messages, model_folder: Path, name: str, message: str
) -> None:
    (model_folder / name).unlink()
    assert_one(problems_of(), rf"must be a Hugging Face model folder \({message}")


@pytest.mark.parametrize(("text", "reason"), [("{", "config.json: "), ("[]", "is no object")])
def test_a_broken_model_config_is_named(
    problems_of: Messages, model_folder: Path, text: str, reason: str
) -> None:
    (model_folder / "config.json").write_text(text)
    assert_one(problems_of(), f"must be a Hugging Face model folder .*{reason}")


def test_sizes_of_a_seeing_model_are_those_of_its_language_model(
    problems_of: Messages, model_folder: Path
) -> None:
    (model_folder / "config.json").write_text(json.dumps({"text_config": {"num_hidden_layers": 3}}))
    messages = problems_of(f"{MEGATRON}.pipeline_model_parallel_size=2")
    assert_one(messages, r"num_hidden_layers \(3\)")


def test_a_model_path_that_is_not_given_is_named(problems_of: Messages) -> None:
    assert_one(
        problems_of("actor_rollout_ref.model.path=null"), "model.path must be given, got None"
    )


def test_a_dataset_must_exist(problems_of: Messages) -> None:
    assert_one(problems_of("data.train_files=no.parquet"), "train_files must be an existing file")
    assert_one(
        problems_of("data.val_files=null"), "val_files must be the path of one file, got None"
    )


def test_a_dataset_row_with_an_unknown_field_is_named(
    problems_of: Messages, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    file = tmp_path / "tasks.parquet"
    write_tasks(file, generate_tasks("frozenlake", 8, 0))
    table = pq.read_table(file)
    pq.write_table(table.append_column("colour", [["red"] * 8]), file)
    assert_one(problems_of(f"data.train_files={file}"), "train_files must hold tasks .*colour")


def test_a_dataset_smaller_than_a_batch_is_refused(problems_of: Messages, tmp_path: Path) -> None:
    file = tmp_path / "tasks.parquet"
    write_tasks(file, generate_tasks("frozenlake", 3, 0))
    assert_one(problems_of(f"data.train_files={file}"), r"number of training tasks \(3\), got 8")


def test_all_problems_come_at_once(problems_of: Messages) -> None:
    messages = problems_of("algorithm.gamma=2", "env.max_steps=0", "+foo=1", "trainer.test_freq=0")
    assert [message.split()[0] for message in messages] == [
        "foo", "env.max_steps", "algorithm.gamma", "trainer.test_freq",
    ]  # fmt: skip


def test_dynamic_sampling_has_a_bound_and_looks_at_returns(problems_of: Messages) -> None:
    found = problems_of(
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=success",
        "algorithm.filter_groups.max_num_gen_batches=0",
        "env.rollout.n=1",
    )
    assert_one(found, r"filter_groups.metric must be reward: .* got 'success'. Leave it out.")
    assert_one(found, r"filter_groups.max_num_gen_batches must be >= 1: .* got 0. Use 10.")
    assert_one(found, r"env.rollout.n must be at least 2 .* one episode has no spread, got 1")


def test_a_reward_function_must_be_a_file(problems_of: Messages, tmp_path: Path) -> None:
    key = "reward.custom_reward_function.path"
    assert_one(problems_of(f"{key}=no/such.py"), rf"{key} must be a Python file, got 'no/such.py'")
    (tmp_path / "reward.py").write_text("")
    assert problems_of(f"{key}={tmp_path}/reward.py") == []
    assert problems_of(f"{key}='pkg://my_package.rewards'") == []


def test_a_reward_function_has_a_name(problems_of: Messages) -> None:
    key = "reward.custom_reward_function.name"
    assert_one(problems_of(f"{key}=null"), rf"{key} must be the name of the function .* got None")


def test_the_overlong_buffer_is_a_part_of_the_allowed_length(problems_of: Messages) -> None:
    key = "algorithm.overlong_penalty.buffer_length"
    found = problems_of(
        "data.max_response_length=16", "algorithm.overlong_penalty.coef=1", f"{key}=17"
    )
    assert_one(found, rf"{key} must be at most data.max_response_length \(16\), got 17. Use 3.")
    assert problems_of("algorithm.overlong_penalty.coef=1") == []


@pytest.mark.parametrize("name", ["a/b", "/a", "..", ".", " ", "a\nb"])
def test_a_run_is_named_without_a_path(findings_of: Callable[..., Findings], name: str) -> None:
    problems = [str(problem) for problem in findings_of(f"run.name='{name}'").problems]
    rule = "run.name must be a name, without a slash or a line break, got "
    assert [problem for problem in problems if problem.startswith(f"{rule}{name!r}")]


def test_a_name_may_hold_blanks_and_dots(problems_of: Messages) -> None:
    assert problems_of("run.name='a b-1.5b'") == []
