"""The whole stack on two nodes: Ray, TransferQueue, Megatron and SGLang under sbatch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1700)]

REPO_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy of 0.2 M parameters whose heads and layers divide by 2."""
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    shape = ("--hidden=64", "--layers=2", "--intermediate=128")
    subprocess.run(
        [sys.executable, REPO_ROOT / "tools/make_policy.py", f"--out={folder}", *shape],
        check=True,
        cwd=REPO_ROOT,
        stdout=subprocess.DEVNULL,
    )
    return folder


def test_two_ranks_a_node_and_two_copies_of_the_model_train_over_two_nodes(
    job, tiny_policy
) -> None:
    run = job.folder / "run"
    job.submit(
        script="train_gigpo.sbatch",
        command=(
            "configs/experiment/frozenlake_cpu.yaml",
            f"run.dir={run}",
            f"actor_rollout_ref.model.path={tiny_policy}",
            # Tensor parallelism inside a node, data parallelism between them.
            "cluster.data_parallel_size=2",
            "data.train_batch_size=2",
            "actor_rollout_ref.actor.ppo_mini_batch_size=1",
            "env.rollout.n=3",
            "env.max_steps=3",
            "env.tasks.num_train=16",
            "env.tasks.num_eval=4",
            "trainer.val_before_train=false",
            "trainer.test_freq=-1",
            "trainer.save_freq=2",
            "trainer.total_training_steps=2",
        ),
        MA_OBJECT_STORE_BYTES="",
    )
    state = job.wait_for_end()
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), job.log()[-5000:]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train/rows" in line]
    assert [line["step"] for line in steps] == [1, 2]
    for line in steps:
        # Step k samples from the weights of step k - 1, on servers of both nodes.
        assert line["training/rollout_probs_diff_max"] < 1e-4
        assert line["episode/count"] == 6
    assert (run / "checkpoints/global_step_2/COMPLETE").is_file()
