"""`megatron-agent launch`: whose nodes are whose, and what only the nodes can answer."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hydra import compose

from envs.registry import EnvLoadError
from megatron_agent.config import ConfigProblemsError, composition
from megatron_agent.config.rules import environment
from megatron_agent.config.rules.layout import gpu_pools, gpus_on_each_node
from megatron_agent.config.values import ConfigValues
from megatron_agent.errors import ConfigError
from megatron_agent.slurm.job_settings import main as settings_main
from megatron_agent.slurm.launch import launch
from megatron_agent.train import checked_config

pytestmark = pytest.mark.unit

SEPARATE = (
    "trainer.v1.trainer_mode=separate_async",
    "actor_rollout_ref.hybrid_engine=false",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "trainer.max_rollout_probs_diff=null",
)


@pytest.fixture
def model(model_folder: Path) -> str:
    return f"actor_rollout_ref.model.path={model_folder}"


def script_of(overrides: list[str], num_nodes: int) -> str:
    script, _ = launch("frozenlake_cpu", overrides, num_nodes=num_nodes, dry_run=True)
    return script


def test_the_servers_own_nodes_are_part_of_the_job(model, caplog) -> None:
    caplog.set_level(logging.WARNING)
    script = script_of([model, *SEPARATE], 3)
    assert "#SBATCH --nodes=3\n" in script
    assert script.rstrip().endswith("trainer.nnodes=2")
    assert "trainer.nnodes" not in caplog.text


def test_a_job_without_a_node_for_the_trainer_is_refused(model) -> None:
    with pytest.raises(
        ConfigError,
        match=r"--nodes must be above actor_rollout_ref.rollout.nnodes \(1\) in mode "
        r"separate_async, got 1. Use 2, or more: the trainer has the nodes that are left.",
    ):
        script_of([model, *SEPARATE], 1)


ON_GPUS = (
    "trainer.device=cuda",
    "actor_rollout_ref.rollout.engine_kwargs.sglang.device=cuda",
    "trainer.n_gpus_per_node=2",
)


@pytest.mark.parametrize(("of_servers", "needed"), [(1, 2), (4, 4)])
def test_the_gpus_of_the_servers_own_nodes_are_counted(model, of_servers, needed) -> None:
    servers = f"actor_rollout_ref.rollout.n_gpus_per_node={of_servers}"
    script = script_of([model, *SEPARATE, *ON_GPUS, servers], 2)
    assert f"#SBATCH --gpus-per-node={needed}\n" in script
    assert f"export MA_GPUS_NEEDED=${{MA_GPUS_NEEDED-{needed}}}\n" in script
    if needed > 2:
        with pytest.raises(
            ConfigProblemsError,
            match=r"cluster.slurm.gpus_per_node must be at least 4 \(trainer.n_gpus_per_node, "
            r"actor_rollout_ref.rollout.n_gpus_per_node\), got 2.",
        ):
            script_of([model, *SEPARATE, *ON_GPUS, servers, "cluster.slurm.gpus_per_node=2"], 2)


def test_servers_that_share_the_trainers_nodes_add_to_its_gpus(model, capsys) -> None:
    # A plain sbatch gives the trainer all nodes of the job.
    lines = [*SEPARATE, *ON_GPUS, "actor_rollout_ref.rollout.n_gpus_per_node=3", "trainer.nnodes=2"]
    assert settings_main(["experiment=frozenlake_cpu", *lines]) == 0
    assert "export MA_GPUS_NEEDED=${MA_GPUS_NEEDED-4}\n" in capsys.readouterr().out  # 7 on 2 nodes


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_pools_of_other_modes_have_no_servers(mode) -> None:
    tree = {
        "trainer": {"v1": {"trainer_mode": mode}, "nnodes": 2, "n_gpus_per_node": 8},
        "actor_rollout_ref": {"rollout": {"nnodes": 1, "n_gpus_per_node": 8}},
    }
    assert gpu_pools(ConfigValues(tree)) == {"trainer.n_gpus_per_node": (2, 8)}


def test_models_with_pools_of_their_own_are_counted() -> None:
    tree = {
        "trainer": {"nnodes": 2, "n_gpus_per_node": 6},
        "reward": {
            "reward_model": {"enable_resource_pool": True, "nnodes": 2, "n_gpus_per_node": 2}
        },
        "distillation": {"enabled": False, "nnodes": 1, "n_gpus_per_node": 8},
    }
    pools = gpu_pools(ConfigValues(tree))
    assert set(pools) == {"trainer.n_gpus_per_node", "reward.reward_model.n_gpus_per_node"}
    assert gpus_on_each_node(pools, 2) == 8


def test_a_launch_composes_once(model, monkeypatch) -> None:
    calls = []

    def count(*arguments, **named):
        calls.append(arguments)
        return compose(*arguments, **named)

    monkeypatch.setattr(composition, "compose", count)
    composition._compose_once.cache_clear()
    script = script_of([model, "trainer.nnodes=1"], 2)
    assert len(calls) == 1
    assert script.rstrip().endswith("trainer.nnodes=2")
    # What follows from the number of nodes follows: two ranks, one on each.
    assert "export MA_NUM_GPUS=${MA_NUM_GPUS-1}\n" in script


def test_in_other_modes_the_trainer_has_all_nodes(model) -> None:
    script = script_of([model, "actor_rollout_ref.rollout.nnodes=1"], 2)
    assert script.rstrip().endswith("trainer.nnodes=2")


@pytest.mark.parametrize(
    ("overrides", "num_nodes", "said"),
    [
        (["trainer.nnodes=4"], 2, "--nodes 2 makes trainer.nnodes 2; the 4 of the configuration"),
        (["trainer.nnodes=1"], 2, "--nodes 2 makes trainer.nnodes 2; the 1 of the configuration"),
        (
            [*SEPARATE, "trainer.nnodes=3"],
            3,
            "--nodes 3 makes trainer.nnodes 2 and 1 of servers; the 3 of the configuration",
        ),
        (["trainer.nnodes=2"], 2, ""),
        ([], 2, ""),
    ],
)
def test_another_number_in_the_configuration_is_overruled_aloud(
    model, caplog, overrides, num_nodes, said
) -> None:
    script_of([model, *overrides], num_nodes)
    texts = [text for text in caplog.messages if "makes trainer.nnodes" in text]
    assert [text.startswith(said) for text in texts] == [True] * bool(said)


def test_cores_of_the_login_node_are_a_warning(model, caplog) -> None:
    overrides = ["experiment=frozenlake_cpu", model, "env.num_workers=100000"]
    script_of(overrides[1:], 1)
    assert "On this machine: env.num_workers must be at most" in caplog.text
    assert "The nodes of the job are asked when it starts." in caplog.text
    with pytest.raises(ConfigProblemsError, match=r"env.num_workers must be at most"):
        checked_config(overrides)  # what the job itself does


def test_a_package_that_the_login_node_lacks_is_a_warning(model, caplog, monkeypatch) -> None:
    def load_env(name: str) -> None:
        raise EnvLoadError(f"environment {name!r} cannot be loaded: No module named 'alfworld'")

    monkeypatch.setattr(environment, "load_env", load_env)
    script_of([model], 1)
    assert "On this machine: env.env_name must load (environment 'frozenlake'" in caplog.text
    with pytest.raises(ConfigProblemsError, match=r"env.env_name must load"):
        checked_config(["experiment=frozenlake_cpu", model])


def test_what_no_machine_can_run_is_refused_all_the_same(model) -> None:
    with pytest.raises(ConfigProblemsError, match=r"env.num_workers must be >= 1"):
        script_of([model, "env.num_workers=0"], 1)
