"""The whole loop on the real stack: Ray, TransferQueue, Megatron, SGLang, FrozenLake.

Each test is one run (or a few) of ``megatron_agent.train`` with a random policy. Most of a short
run would be imports, so all but the first are forked from one server.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

MakeRun = Callable[..., "TrainingRun"]  # noqa: F821 - see conftest.py


def test_tensor_parallel_run_with_two_servers_and_evaluations(training_run: MakeRun):
    run = training_run(
        "tp2",
        "trainer.total_training_steps=3",
        "trainer.save_freq=3",
        "trainer.val_before_train=true",
        "trainer.test_freq=3",
        alone=True,
    )
    assert run.finish() == 0, run.output()[-3000:]

    steps = run.metrics()
    assert [line["step"] for line in steps] == [1, 2, 3]
    for line in steps:
        # Step k samples from the weights of step k - 1: agreement here is the weight sync's proof.
        assert line["training/rollout_probs_diff_max"] < 1e-4
        # Two groups, one a mini-batch: two optimizer steps, however many rows there are.
        assert line["train/optimizer_steps"] == 2
        assert line["episode/count"] == 6
        assert math.isfinite(line["actor/grad_norm"])
    assert any(line["actor/grad_norm"] > 0 for line in steps)

    checkpoint = run.folder / "checkpoints" / "global_step_3"
    assert (checkpoint / "COMPLETE").is_file()
    assert list((checkpoint / "actor").rglob("*.safetensors"))
    assert list((run.folder / "tensorboard").glob("events.out.*"))
    attempts = json.loads((run.folder / "run.json").read_text())["attempts"]
    assert attempts[0]["config"]["algorithm"]["adv_estimator"] == "gigpo"

    episodes = [e for e in run.episodes() if e["split"] == "train"]
    assert len(episodes) == 3 * 2 * 3
    assert all(1 <= episode["num_steps"] <= 3 for episode in episodes)
    first_boards = {(e["uid"], e["turns"][0]["observation"]) for e in episodes}
    assert len(first_boards) == len({e["uid"] for e in episodes}), "a group starts in one state"

    held_out = [e["task_id"] for e in run.episodes() if e["split"] == "eval"]
    assert len(held_out) == 2 * 4  # before and after
    assert len(set(held_out)) == 4
    assert not {e["task_id"] for e in episodes} & set(held_out)


def test_pipeline_parallel_run_with_grpo(training_run: MakeRun):
    run = training_run(
        "pp2",
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
        "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2",
    )
    assert run.finish() == 0, run.output()[-3000:]
    assert [line["training/rollout_probs_diff_max"] < 1e-4 for line in run.metrics()] == [True] * 2


def test_data_parallel_run_with_reference_policy_and_critic(training_run: MakeRun):
    run = training_run(
        "dp2",
        "cluster.data_parallel_size=2",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
        "actor_rollout_ref.actor.use_kl_loss=true",
        "critic.enable=true",
    )
    assert run.finish() == 0, run.output()[-3000:]
    first, second = run.metrics()
    # The reference policy is the start: no divergence in the first step's first mini-batch, some
    # later.
    assert first["actor/kl_loss"] >= 0
    assert second["actor/kl_loss"] > 0
    assert math.isfinite(second["critic/grad_norm"])
    assert second["training/rollout_probs_diff_max"] < 1e-4


def test_asynchronous_run_aborts_and_resumes_generation(training_run: MakeRun):
    # The servers are interrupted at each weight update; what they had begun goes on afterwards. One
    # long response an episode, one at a time on each server, first come, first served: whenever a
    # step has its groups, a response of a later group has begun. Far more steps than batches under
    # way: on a quick machine the first steps may find all of theirs finished, the later ones wait
    # for responses that an update interrupted.
    num_steps = 6
    run = training_run(
        "async",
        "trainer.v1.trainer_mode=colocate_async",
        "trainer.max_rollout_probs_diff=null",
        f"trainer.total_training_steps={num_steps}",
        "data.max_response_length=512",
        "env.max_steps=1",
        "env.tasks.num_train=64",
        "actor_rollout_ref.rollout.max_num_seqs=1",
        "trainer.v1.colocate_async.num_warmup_batches=2",
    )
    assert run.finish() == 0, run.output()[-3000:]
    assert [line["episode/count"] for line in run.metrics()] == [6] * num_steps
    turns = [turn for episode in run.episodes() for turn in episode["turns"]]
    interrupted = [t for t in turns if t["weight_version_min"] < t["weight_version_max"]]
    assert interrupted, "no response was aborted under one version and finished under the next"


def test_crashing_environments_are_data_until_too_many_crash(training_run: MakeRun, tmp_path: Path):
    packages = _package_with_a_crashing_environment(tmp_path / "site")
    patient = training_run(
        "patient", "env.env_name=brittle", "env.max_failure_rate=1.0", PYTHONPATH=str(packages)
    )
    assert patient.finish() == 0, patient.output()[-3000:]
    assert patient.metrics()[0]["episode/failed/mean"] > 0
    assert patient.metrics()[0]["episode/count"] == 6
    failures = {e["failure"].split(":")[0] for e in patient.episodes() if e["failure"]}
    assert failures == {"env_error"}

    strict = training_run(
        "strict", "env.env_name=brittle", "env.max_failure_rate=0.0", PYTHONPATH=str(packages)
    )
    assert strict.finish() == 2
    assert "episodes failed (env_error" in strict.output()
    assert "env.max_failure_rate=0.0" in strict.output()


def _package_with_a_crashing_environment(folder: Path) -> Path:
    """An installed package of somebody else: FrozenLake that crashes in the second step of some."""
    metadata = folder / "brittle-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brittle\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[megatron_agent.envs]\nbrittle = brittle:SPEC\n")
    (folder / "brittle.py").write_text(
        textwrap.dedent(
            '''
            """FrozenLake on thin ice."""
            import dataclasses, os
            from envs.frozenlake import SPEC as LAKE
            from envs.frozenlake.env import FrozenLakeEnv

            class BrittleEnv(FrozenLakeEnv):
                made = 0

                def reset(self, *, seed, options=None):
                    BrittleEnv.made += 1
                    self.crashes = BrittleEnv.made % 2 == 0
                    self.num_steps = 0
                    return super().reset(seed=seed, options=options)

                def step(self, action):
                    self.num_steps += 1
                    if self.crashes and self.num_steps == 2:
                        raise RuntimeError("the ice broke")
                    return super().step(action)

            SPEC = dataclasses.replace(LAKE, name="brittle", make=BrittleEnv)
            '''
        )
    )
    return folder
