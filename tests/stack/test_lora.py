"""LoRA through the whole loop: adapters are trained, and the servers sample with them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

MakeRun = Callable[..., "TrainingRun"]  # noqa: F821 - see conftest.py

LORA = (
    "actor_rollout_ref.model.lora.rank=8",
    "actor_rollout_ref.model.lora.alpha=16",
    # Large steps: probabilities of a thousandth move far more than the agreement that is asked for.
    "actor_rollout_ref.actor.optim.lr=3.0e-3",
    "actor_rollout_ref.model.lora.merge=true",
    "trainer.save_freq=2",
    "trainer.total_training_steps=3",
)


def test_adapters_are_trained_served_and_resumed(training_run: MakeRun) -> None:
    """Merged into the weights at each sync; the third step goes on from a checkpoint."""
    run = training_run("lora", *LORA)
    short = type(run)(
        folder=run.folder,
        overrides=(*run.overrides, "trainer.total_training_steps=2"),
        environment=run.environment,
    )
    assert short.finish() == 0, short.output()[-3000:]
    assert run.finish() == 0, run.output()[-3000:]
    steps = run.metrics()
    assert [line["step"] for line in steps] == [1, 2, 3]
    # Step k samples from the weights of step k - 1: agreement here is the merged sync's proof.
    assert all(line["training/rollout_probs_diff_max"] < 1e-6 for line in steps)
    assert all(math.isfinite(line["actor/grad_norm"]) for line in steps)
    assert any(line["actor/grad_norm"] > 0 for line in steps)
