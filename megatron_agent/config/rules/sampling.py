"""Rules of sampling: the temperature of training and of evaluation, and reported log-probs."""

from __future__ import annotations

from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues

ROLLOUT_KEY = "actor_rollout_ref.rollout"
VAL_KEY = f"{ROLLOUT_KEY}.val_kwargs"
PARITY_KEY = "trainer.max_rollout_probs_diff"


def check_sampling(values: ConfigValues, findings: Findings) -> None:
    """Sessions differ, evaluation samples as asked, and the parity guard has what it compares."""
    temperature = values.number(f"{ROLLOUT_KEY}.temperature")
    if temperature is not None and not temperature > 0:
        rule = "must be > 0: sessions of a group must differ"
        findings.problem(f"{ROLLOUT_KEY}.temperature", rule, temperature, "Use 1.0.")
    num_val_sessions = values.integer(f"{VAL_KEY}.n")
    if num_val_sessions is not None and num_val_sessions < 1:
        findings.problem(f"{VAL_KEY}.n", "must be >= 1", num_val_sessions, "Use 1.")
    # verl's V1 agent loop reads the temperature and never the flag.
    if values.get(f"{VAL_KEY}.do_sample") is False and values.number(f"{VAL_KEY}.temperature"):
        findings.problem(
            f"{VAL_KEY}.do_sample",
            "must be true with a temperature above 0: the temperature alone decides",
            False,
            f"Set {VAL_KEY}.temperature=0 for greedy evaluation.",
        )
    reports = values.flag(f"{ROLLOUT_KEY}.calculate_log_probs")
    limit = values.number(PARITY_KEY)
    if limit is not None and not reports:
        findings.problem(
            PARITY_KEY,
            f"must be null without {ROLLOUT_KEY}.calculate_log_probs: there is nothing to compare",
            limit,
            f"Set {ROLLOUT_KEY}.calculate_log_probs=true.",
        )
    mode = values.text("trainer.v1.trainer_mode")
    if limit is not None and mode in ("colocate_async", "separate_async"):
        findings.problem(
            PARITY_KEY,
            f"must be null in mode {mode}, which samples from older weights on purpose",
            limit,
            f"Set {PARITY_KEY}=null.",
        )
