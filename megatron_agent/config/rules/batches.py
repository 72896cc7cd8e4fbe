"""Rules of batch sizes. Both sizes count task groups, never rows.

An iteration runs ``data.train_batch_size`` groups and makes
``data.train_batch_size / actor_rollout_ref.actor.ppo_mini_batch_size`` optimizer steps, whatever
number of rows its episodes gave.
"""

from __future__ import annotations

from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues

MINI_BATCH_KEY = "actor_rollout_ref.actor.ppo_mini_batch_size"
TOKENS_KEY = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"


def check_batches(values: ConfigValues, findings: Findings) -> None:
    """Batch sizes are positive and divide one another; a micro-batch holds at least one row."""
    num_groups = _positive(values, "data.train_batch_size", findings)
    num_groups_per_step = _positive(values, MINI_BATCH_KEY, findings)
    if num_groups and num_groups_per_step and num_groups % num_groups_per_step:
        findings.problem(
            MINI_BATCH_KEY,
            f"must divide data.train_batch_size ({num_groups}); both count task groups",
            num_groups_per_step,
            f"Use {_nearest_divisor(num_groups, num_groups_per_step)}.",
        )
    _check_micro_batches(values, findings)


def _check_micro_batches(values: ConfigValues, findings: Findings) -> None:
    if not values.flag("actor_rollout_ref.actor.use_dynamic_bsz"):
        findings.problem(
            "actor_rollout_ref.actor.use_dynamic_bsz",
            "must be true: the number of rows follows episode length, no fixed size divides it",
            values.get("actor_rollout_ref.actor.use_dynamic_bsz"),
            f"Leave it, and bound memory with {TOKENS_KEY}.",
        )
    num_tokens = values.integer(TOKENS_KEY)
    longest_row = (values.integer("data.max_prompt_length") or 0) + (
        values.integer("data.max_response_length") or 0
    )
    if num_tokens is not None and num_tokens < longest_row:
        findings.problem(
            TOKENS_KEY,
            f"must hold one row of prompt and response ({longest_row} tokens)",
            num_tokens,
            f"Use at least {longest_row}.",
        )


def _positive(values: ConfigValues, key: str, findings: Findings) -> int | None:
    number = values.integer(key)
    if number is not None and number < 1:
        findings.problem(key, "must be >= 1", number, "Use 8.")
        return None
    return number


def _nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of ``number`` nearest to ``wanted``.

    Example:
        >>> _nearest_divisor(16, 5)
        4
    """
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return min(divisors, key=lambda divisor: abs(divisor - wanted))
