"""When a difference between rollout and training ends a run."""

from __future__ import annotations

import numpy as np
import pytest

from megatron_agent.backend.parity_guard import DIFFERENCE, ParityError, ParityGuard

pytestmark = pytest.mark.unit


def test_a_difference_up_to_the_limit_is_accepted():
    ParityGuard(max_difference=1e-3).check({DIFFERENCE: 1e-3}, step=1)


@pytest.mark.parametrize("difference", [0.5, np.float32(0.5)])
def test_a_larger_difference_ends_the_run_and_says_where_to_look(difference):
    with pytest.raises(ParityError) as raised:
        ParityGuard(max_difference=1e-3).check({DIFFERENCE: difference}, step=7)
    assert str(raised.value) == (
        "Step 7: the probabilities of sampled tokens differ by up to 5.00e-01 between SGLang and "
        "Megatron, above trainer.max_rollout_probs_diff=0.001. The servers do not hold the weights "
        "that are trained: look at the weight sync."
    )


def test_a_difference_that_is_not_a_number_is_not_a_small_one():
    with pytest.raises(ParityError, match="nan"):
        ParityGuard(max_difference=1e-3).check({DIFFERENCE: float("nan")}, step=1)


def test_without_a_limit_nothing_is_checked():
    ParityGuard(max_difference=None).check({DIFFERENCE: 1.0}, step=1)


def test_a_step_without_the_metric_is_not_checked():
    ParityGuard(max_difference=1e-3).check({}, step=1)
