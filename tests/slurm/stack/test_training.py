"""The whole stack on two nodes: Ray, TransferQueue, Megatron and SGLang under sbatch."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1700)]


def test_two_ranks_a_node_and_two_copies_of_the_model_train_over_two_nodes(run) -> None:
    # Tensor parallelism inside a node, data parallelism between them.
    run.submit(
        "cluster.data_parallel_size=2",
        "trainer.save_freq=2",
        "trainer.total_training_steps=2",
        num_nodes=2,
    )
    run.assert_complete(2, restarts=0)
    for line in run.metrics():
        # Step k samples from the weights of step k - 1, on servers of both nodes.
        assert line["training/rollout_probs_diff_max"] < 1e-4
        assert line["episode/count"] == 6

    # The same folder, by the script for evaluations: its newest checkpoint, on one node.
    (run.job.folder / "job.log").unlink()
    run.submit(script="eval.sbatch")
    state = run.job.wait_for_end()
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), run.job.log()[-5000:]
    assert "global_step_2, setting global step to 2" in run.job.log()
    assert run.num_evaluated() == 4
    assert run.steps() == [1, 2]
