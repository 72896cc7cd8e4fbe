"""`megatron-agent launch`: whose nodes are whose, and what only the nodes can answer."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from envs.registry import EnvLoadError
from megatron_agent.config import ConfigProblemsError
from megatron_agent.config.rules import environment
from megatron_agent.errors import ConfigError
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
