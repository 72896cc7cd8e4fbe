"""Credit reaches the optimizer: every method, losses of other kinds, dynamic sampling."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_agent.credit import credit_names

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

MakeRun = Callable[..., "TrainingRun"]  # noqa: F821 - see conftest.py

# Rewards that a random policy collects, different in each episode: its valid actions are rare.
REWARD = textwrap.dedent(
    """
    def compute_score(data_source, solution_str, ground_truth, extra_info):
        steps = extra_info["episode"]["steps"]
        return {"step_rewards": [len(step["response"]) / 100 for step in steps], "judge": "length"}
    """
)


# Last the one that needs the critic's values.
METHODS = [name for name in credit_names() if name != "gae"] + ["gae"]


def _assert_every_method_moved_the_policy(steps: list[dict[str, Any]]) -> None:
    for method, line in zip(METHODS, steps, strict=True):
        assert line["train/optimizer_steps"] > 0, method
        assert line["actor/grad_norm"] > 0, method
        assert line["credit/adv_abs/mean_over_rows"] > 0, method


@pytest.fixture
def reward_function(tmp_path: Path) -> str:
    path = tmp_path / "reward.py"
    path.write_text(REWARD)
    return f"reward.custom_reward_function.path={path}"


def test_every_credit_method_moves_the_policy(training_run: MakeRun, reward_function: str) -> None:
    run = training_run(
        "methods",
        "credit=gae",
        reward_function,
        "algorithm.row_weights=trajectory",
        # DAPO's loss: clipped higher than low, every token the same weight.
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        "algorithm.overlong_penalty.coef=0.5",
        "algorithm.overlong_penalty.buffer_length=8",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        script="tests/stack/credit_methods_job.py",
        arguments=(",".join(METHODS),),
    )
    assert run.finish() == 0, run.output()[-3000:]
    steps = run.metrics()
    _assert_every_method_moved_the_policy(steps)
    for method, line in zip(METHODS, steps, strict=True):
        assert line["train/optimizer_steps"] == 2, method
        assert math.isfinite(line["critic/grad_norm"]) and line["critic/grad_norm"] > 0, method
        assert line["training/rollout_probs_diff_max"] < 1e-4, method
    # The function's rewards are the ones that count, and the environment's are kept.
    played = [e for e in run.episodes() if e["turns"]]
    for episode in played:
        # 16 tokens are allowed, the last 8 cost.
        rewards = [
            len(turn["response"]) / 100 - 0.5 * max(0, turn["num_response_tokens"] - 8) / 8
            for turn in episode["turns"]
        ]
        assert [turn["reward"] for turn in episode["turns"]] == pytest.approx(rewards)
        assert episode["turns"][-1]["info"]["judge"] == "length"


@pytest.mark.parametrize(
    "mode",
    [
        ("trainer.v1.trainer_mode=colocate_async",),
        (
            "trainer.v1.trainer_mode=separate_async",
            # Two updates an iteration, each of one group.
            "trainer.v1.separate_async.parameter_sync_step=2",
            "actor_rollout_ref.hybrid_engine=false",
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
            "critic.megatron.tensor_model_parallel_size=1",
            "actor_rollout_ref.rollout.nnodes=1",
            "actor_rollout_ref.rollout.n_gpus_per_node=1",
        ),
    ],
    ids=["colocate_async", "separate_async"],
)
def test_every_credit_method_moves_the_policy_of_an_asynchronous_run(
    training_run: MakeRun, reward_function: str, mode: tuple[str, ...]
) -> None:
    run = training_run(
        "methods",
        "credit=gae",
        reward_function,
        # Episodes of the version before are trained on too, and their probabilities differ.
        "trainer.max_rollout_probs_diff=null",
        *mode,
        script="tests/stack/credit_methods_job.py",
        arguments=(",".join(METHODS),),
    )
    assert run.finish() == 0, run.output()[-3000:]
    steps = run.metrics()
    _assert_every_method_moved_the_policy(steps)
    assert [line["train/optimizer_steps"] for line in steps] == [2] * len(METHODS)
    versions = {turn["weight_version_min"] for e in run.episodes() for turn in e["turns"]}
    assert len(versions) > 1, "the servers never changed their weights"


def test_gspo_on_step_rows_with_dynamic_sampling_and_groups_by_similarity(
    training_run: MakeRun, tmp_path: Path
) -> None:
    # Half of the tasks are worth the same whatever happens: groups of them are to be replaced.
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return len(solution_str) / 100 if extra_info['index'] % 2 else 0.5\n"
    )
    run = training_run(
        "gspo",
        f"reward.custom_reward_function.path={reward}",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        "actor_rollout_ref.actor.clip_ratio_low=3e-4",
        "actor_rollout_ref.actor.clip_ratio_high=4e-4",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
        "algorithm.gigpo.enable_similarity=true",
        "algorithm.gigpo.similarity_thresh=0.8",
        "algorithm.filter_groups.enable=true",
    )
    assert run.finish() == 0, run.output()[-3000:]
    steps = run.metrics()
    assert [line["train/optimizer_steps"] for line in steps] == [2, 2]
    for line in steps:
        assert line["credit/groups_without_spread/share"] == 0
        assert line["actor/grad_norm"] > 0
        assert line["credit/similarity_grouping_s"] >= 0
        # Success is over all that was played, also what was not kept.
        assert line["episode/count"] >= 6
    episodes = run.episodes()
    assert sum(line["episode/count"] for line in steps) == len(episodes)
    kept = [line["train/groups_kept/share"] for line in steps]
    assert min(kept) < 1, f"no group was replaced: {json.dumps(kept)}"
