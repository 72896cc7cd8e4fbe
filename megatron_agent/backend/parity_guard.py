"""Hop 9, watched: do the servers really sample from the weights that are trained?

verl compares, for every token of a batch, the probability that SGLang reported while sampling with
the one Megatron computes for it (``training/rollout_probs_diff_*``). After a good weight sync they
agree up to rounding; stale or half-loaded weights show here first, and nothing else would say so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatron_agent.errors import MegatronAgentError

logger = logging.getLogger(__name__)

DIFFERENCE = "training/rollout_probs_diff_max"


class ParityError(MegatronAgentError, RuntimeError):
    """Rollout and training disagree about the same tokens under what should be the same weights."""


@dataclass(frozen=True, kw_only=True)
class ParityGuard:
    """Stops a run whose servers do not hold the trained weights.

    Args:
        max_difference: largest difference of a token's probability that is accepted; None only
            reports. Exact arithmetic (float32 on both sides) keeps it below 1e-4; bfloat16 does
            not, and asynchronous modes sample from older weights on purpose.
    """

    max_difference: float | None

    def check(self, metrics: Mapping[str, Any], *, step: int) -> None:
        """Look at one iteration's metrics.

        Raises:
            ParityError: the difference is above the limit.
        """
        difference = metrics.get(DIFFERENCE)
        if difference is None or self.max_difference is None:
            return
        if not float(difference) <= self.max_difference:  # NaN is not within any limit
            raise ParityError(
                f"Step {step}: the probabilities of sampled tokens differ by up to "
                f"{float(difference):.2e} between SGLang and Megatron, above "
                f"trainer.max_rollout_probs_diff={self.max_difference:g}. The servers do not hold "
                f"the weights that are trained: look at the weight sync."
            )
