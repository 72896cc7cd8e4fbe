"""Rules of sampling: the temperature of training and of evaluation, and reported log-probs."""

from __future__ import annotations

from collections.abc import Mapping

from megatron_agent.config.fields import Rule
from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues

ROLLOUT_KEY = "actor_rollout_ref.rollout"
VAL_KEY = f"{ROLLOUT_KEY}.val_kwargs"
PARITY_KEY = "trainer.max_rollout_probs_diff"

_SHARE_OF_TOKENS = Rule(above=0, at_most=1, remedy="Use 1.0 for all tokens.")
RANGES: Mapping[str, Rule] = {
    f"{ROLLOUT_KEY}.top_p": _SHARE_OF_TOKENS,
    f"{VAL_KEY}.top_p": _SHARE_OF_TOKENS,
    f"{VAL_KEY}.temperature": Rule(at_least=0, remedy="Use 1.0, or 0 for greedy evaluation."),
    f"{ROLLOUT_KEY}.gpu_memory_utilization": Rule(above=0, at_most=1, remedy="Use 0.6."),
    f"{ROLLOUT_KEY}.agent.num_workers": Rule(at_least=1, remedy="Use 1."),
}
TOP_KS: tuple[str, ...] = (f"{ROLLOUT_KEY}.top_k", f"{VAL_KEY}.top_k")


def check_sampling(values: ConfigValues, findings: Findings) -> None:
    """Sessions differ, evaluation samples as asked, and the parity guard has what it compares."""
    temperature = values.number(f"{ROLLOUT_KEY}.temperature")
    if temperature is not None and not temperature > 0:
        rule = "must be > 0: sessions of a group must differ"
        findings.problem(f"{ROLLOUT_KEY}.temperature", rule, temperature, "Use 1.0.")
    for key, rule_of_key in RANGES.items():
        broken = rule_of_key.broken_by(values.number(key))
        if broken is not None:
            findings.problem(key, broken, values.get(key), rule_of_key.remedy)
    for key in TOP_KS:
        top_k = values.integer(key)
        if top_k is not None and top_k != -1 and top_k < 1:
            findings.problem(key, "must be >= 1, or -1 for all tokens", top_k, "Use -1.")
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
