"""The whole stack, interrupted: it goes on with the tasks that it would have had."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(2400)]

ONE_RANK = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1"
"""Where a second rank would change nothing but the load."""

KILL_RANK = "kill -9 $(pgrep -f ^ray::WorkerDict | tail -n 1)"
# SGLang's scheduler: the largest child of the server from which processes are forked.
KILL_SCHEDULER = """
forker=$(pgrep -f '[p]refork.server' | head -n 1)
kill -9 $(ps -o pid=,rss=,args= --ppid $forker | grep prefork.server | sort -n -k 2 | tail -n 1 |
    awk '{print $1}')
"""


def _ask_to_stop(slurm, run) -> None:
    done = slurm.run("scancel", "-b", "-s", "USR1", run.job.number)
    assert done.returncode == 0, done.stderr


def test_a_stop_in_any_phase_of_a_step_costs_no_task(run, slurm) -> None:
    """One run of four attempts: stopped while it generates, updates, and writes a checkpoint."""
    run.submit(
        "trainer.total_training_steps=6",
        # Each phase long enough to be met: long responses, many passes over them.
        "data.max_response_length=256",
        "actor_rollout_ref.actor.ppo_epochs=8",
        "trainer.stop_grace_s=0",
        ONE_RANK,
    )
    run.wait_for(lambda: run.num_admissions(2) == 1)
    _ask_to_stop(slurm, run)
    run.job.wait_for(lambda: run.job.state.get("Restarts") == "1")
    assert "The episodes of step 2 are set aside." in run.job.log()

    run.wait_for(lambda: run.num_played(3) == 6)
    time.sleep(2.5)  # the last episodes reach the trainer, and the update begins
    _ask_to_stop(slurm, run)
    run.job.wait_for(lambda: run.job.state.get("Restarts") == "2")
    assert run.has_checkpoint(3)

    run.wait_for(lambda: run.checkpoint(5).exists())  # it is whole a few tenths of a second later
    _ask_to_stop(slurm, run)
    run.job.wait_for(lambda: run.job.state.get("Restarts") == "3")
    assert run.has_checkpoint(5)
    run.assert_complete(6, restarts=3)


def test_five_interruptions_at_random_moments_change_no_task(run, slurm, tmp_path) -> None:
    """Three stops on request, a killed server and a killed rank, against a run without any."""
    num_steps = 30
    steps = f"trainer.total_training_steps={num_steps}"
    moments = random.Random(0)
    run.submit(steps, "trainer.stop_grace_s=1")
    # On the other node, so that both runs take their time together.
    (tmp_path / "whole").mkdir()
    whole = replace(run, job=replace(run.job, folder=tmp_path / "whole", number=""))
    whole.submit(steps, ONE_RANK)
    for number, kill in enumerate((None, KILL_SCHEDULER, None, KILL_RANK, None)):
        run.wait_for(lambda number=number: len(run.steps()) >= 1 + 5 * number)
        time.sleep(moments.uniform(0, 4))
        if kill is None:
            _ask_to_stop(slurm, run)
        else:
            slurm.lab("exec", run.job.state["BatchHost"], "bash", "-c", kill)
        run.job.wait_for(lambda number=number: run.job.state.get("Restarts") == str(number + 1))
        log = run.job.log()
        assert log.count("A process of the run was lost") == (number + 1) // 2, log[-8000:]
    assert "failure 2, of which 3 are borne: back into the queue" in log
    run.assert_complete(num_steps, restarts=5)
    # A new server has the weights of the checkpoint, not those that it was started with.
    assert all(line["training/rollout_probs_diff_max"] < 1e-4 for line in run.metrics())
    whole.assert_complete(num_steps, restarts=0)
    assert run.tasks_by_step() == whole.tasks_by_step()
