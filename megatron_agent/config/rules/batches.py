"""Rules of batch sizes. Both sizes count task groups, never rows.

An iteration runs ``data.train_batch_size`` groups and makes
``data.train_batch_size / actor_rollout_ref.actor.ppo_mini_batch_size`` optimizer steps, whatever
number of rows its episodes gave.
"""

from __future__ import annotations

from megatron_agent.config.findings import Findings
from megatron_agent.config.rules.layout import CP_KEY
from megatron_agent.config.values import ConfigValues

MINI_BATCH_KEY = "actor_rollout_ref.actor.ppo_mini_batch_size"
EPOCHS_KEY = "actor_rollout_ref.actor.ppo_epochs"
UPDATES_KEY = "trainer.v1.separate_async.parameter_sync_step"
TOKENS_KEY = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
FORWARD_TOKENS_KEYS = (
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
)


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
    if num_groups:
        _check_fetches_and_updates(values, num_groups, num_groups_per_step, findings)
    num_evaluated = values.integer("data.val_batch_size")
    if num_evaluated is not None and num_evaluated < 1:
        rule = "must be >= 1, or null for all tasks at once"
        findings.problem("data.val_batch_size", rule, num_evaluated, "Leave it at null.")
    num_epochs = values.integer(EPOCHS_KEY)
    if num_epochs is not None and num_epochs < 1:
        findings.problem(EPOCHS_KEY, "must be >= 1", num_epochs, "Use 1.")
    _check_micro_batches(values, findings)


def _check_fetches_and_updates(
    values: ConfigValues, num_groups: int, num_groups_per_step: int | None, findings: Findings
) -> None:
    """What verl would refuse only when its servers are up."""
    num_fetched = values.integer("data.gen_batch_size")
    if num_fetched is not None and (num_fetched < 1 or num_groups % num_fetched):
        findings.problem(
            "data.gen_batch_size",
            f"must divide data.train_batch_size ({num_groups})",
            num_fetched,
            "Leave it at null.",
        )
    if values.text("trainer.v1.trainer_mode") != "separate_async":
        return
    num_updates = values.integer(UPDATES_KEY)
    if num_updates and num_groups_per_step and num_updates * num_groups_per_step != num_groups:
        findings.problem(
            UPDATES_KEY,
            f"times {MINI_BATCH_KEY} ({num_groups_per_step}) must be data.train_batch_size "
            f"({num_groups}) in mode separate_async",
            num_updates,
            "Change one of the three.",
        )


def _check_micro_batches(values: ConfigValues, findings: Findings) -> None:
    if not values.flag("actor_rollout_ref.actor.use_dynamic_bsz"):
        findings.problem(
            "actor_rollout_ref.actor.use_dynamic_bsz",
            "must be true: the number of rows follows episode length, no fixed size divides it",
            values.get("actor_rollout_ref.actor.use_dynamic_bsz"),
            f"Leave it, and bound memory with {TOKENS_KEY}.",
        )
    longest_row = (values.integer("data.max_prompt_length") or 0) + (
        values.integer("data.max_response_length") or 0
    )
    context = values.integer(CP_KEY) or 1
    ranks = f" on {context} context-parallel ranks" if context > 1 else ""
    # verl/utils/seqlen_balancing.py, rearrange_micro_batches, asserts that the longest row fits.
    budgets = {key: values.integer(key) for key in (TOKENS_KEY, *FORWARD_TOKENS_KEYS)}
    for key, num_tokens in budgets.items():
        if num_tokens is None or num_tokens * context >= longest_row:
            continue
        if key != TOKENS_KEY and num_tokens == budgets[TOKENS_KEY]:
            continue  # verl's default: follows the actor's
        findings.problem(
            key,
            f"must hold one row of prompt and response ({longest_row} tokens{ranks})",
            num_tokens,
            f"Use at least {-(-longest_row // context)}.",
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
