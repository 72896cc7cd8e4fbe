"""LoRA through the whole loop: adapters are trained, and the servers sample with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

MakeRun = Callable[..., "TrainingRun"]  # noqa: F821 - see conftest.py

LORA = (
    "actor_rollout_ref.model.lora.rank=8",
    "actor_rollout_ref.model.lora.alpha=16",
    # Large steps: probabilities of a thousandth move far more than the agreement that is asked for.
    "actor_rollout_ref.actor.optim.lr=3.0e-3",
    "trainer.total_training_steps=3",
)


def _check_steps(steps: list[dict[str, Any]]) -> None:
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["training/rollout_probs_diff_max"] < 1e-6 for line in steps)
    assert all(math.isfinite(line["actor/grad_norm"]) for line in steps)
    assert any(line["actor/grad_norm"] > 0 for line in steps)


def test_adapters_merged_at_the_sync_are_what_the_servers_sample_with(
    training_run: MakeRun,
) -> None:
    run = training_run("merged", *LORA, "actor_rollout_ref.model.lora.merge=true")
    assert run.finish() == 0, run.output()[-3000:]
    _check_steps(run.metrics())


def test_a_run_with_adapters_resumes_from_its_checkpoint(training_run: MakeRun) -> None:
    run = training_run(
        "resumed", *LORA, "actor_rollout_ref.model.lora.merge=true", "trainer.save_freq=2"
    )
    short = type(run)(
        folder=run.folder,
        overrides=(*run.overrides, "trainer.total_training_steps=2"),
        environment=run.environment,
    )
    assert short.finish() == 0, short.output()[-3000:]
    assert run.finish() == 0, run.output()[-3000:]
    _check_steps(run.metrics())
