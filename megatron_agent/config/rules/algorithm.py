"""Rules of credit assignment and groups."""

from __future__ import annotations

from megatron_agent.config.findings import Findings, nearest_key
from megatron_agent.config.settings import AgentSettings
from megatron_agent.config.values import ConfigValues
from megatron_agent.credit import check_options, credit_names, credit_needs
from megatron_agent.errors import ConfigError, RegistryError

COMPARES_SESSIONS = ("gigpo", "grpo", "hgpo", "reinforce_plus_plus_baseline", "rloo")
"""Methods that learn from differences between the sessions of one task."""


def check_algorithm(values: ConfigValues, findings: Findings) -> None:
    """The group size is one number, and large enough to compare members of a group."""
    group_size = values.integer("env.rollout.n")
    servers_group_size = values.integer("actor_rollout_ref.rollout.n")
    if group_size is not None and servers_group_size not in (None, group_size):
        findings.problem(
            "actor_rollout_ref.rollout.n",
            f"must equal env.rollout.n ({group_size})",
            servers_group_size,
            f"Set env.rollout.n={servers_group_size} and leave this key alone.",
        )
    estimator = values.text("algorithm.adv_estimator")
    if estimator is not None and estimator not in credit_names():
        near = nearest_key(estimator, credit_names())
        remedy = f"Did you mean {near!r}?" if near else "Choose one of them."
        rule = f"must be one of {', '.join(credit_names())}"
        findings.problem("algorithm.adv_estimator", rule, estimator, remedy)
    elif estimator is not None:
        _check_needs(estimator, values, findings)
    if group_size == 1 and estimator in COMPARES_SESSIONS:
        findings.warn(
            f"env.rollout.n is 1: {estimator} compares the members of a group, and a group of one "
            f"has no peers, so {_what_is_left(estimator, values)}. Use 8 to learn anything."
        )
    if values.flag("algorithm.use_kl_in_reward"):
        findings.problem(
            "algorithm.use_kl_in_reward",
            "must be false: step rewards come from the environment alone",
            True,
            "Use actor_rollout_ref.actor.use_kl_loss=true.",
        )
    if values.flag("algorithm.gigpo.enable_similarity") and estimator != "gigpo":
        findings.warn(
            f"algorithm.gigpo.enable_similarity is read by gigpo alone; {estimator} does not group "
            "steps by similarity."
        )
    if values.get("algorithm.gigpo.repeated_states") == "first_visit" and estimator != "gigpo":
        findings.warn(
            f"algorithm.gigpo.repeated_states is read by gigpo alone; with {estimator} each visit "
            "of a state counts."
        )


def _what_is_left(estimator: str, values: ConfigValues) -> str:
    """Of the credit of groups of one."""
    if estimator == "hgpo" and not values.flag("algorithm.hgpo.base_group"):
        return "only a state that a session sees again has anything to be compared with"
    if values.get("algorithm.gigpo.lonely_episode") == "raw_score":
        return "every episode is judged by its own return (algorithm.gigpo.lonely_episode)"
    return "every episode advantage is zero"


def check_group_filter(values: ConfigValues, findings: Findings) -> None:
    """Dynamic sampling looks at returns, has a bound, and needs groups that can differ."""
    if not values.flag("algorithm.filter_groups.enable"):
        return
    metric = values.get("algorithm.filter_groups.metric")
    if metric != "reward":
        rule = "must be reward: groups are filtered by the returns of their episodes"
        findings.problem("algorithm.filter_groups.metric", rule, metric, "Leave it out.")
    max_num_batches = values.integer("algorithm.filter_groups.max_num_gen_batches")
    if max_num_batches is not None and max_num_batches < 1:
        findings.problem(
            "algorithm.filter_groups.max_num_gen_batches",
            "must be >= 1: a step rolls out one batch of groups at least",
            max_num_batches,
            "Use 10.",
        )
    if values.integer("env.rollout.n") == 1:
        rule = "must be at least 2 with algorithm.filter_groups.enable: one episode has no spread"
        findings.problem("env.rollout.n", rule, 1, "Use 8.")


def check_credit(settings: AgentSettings, findings: Findings) -> None:
    """The credit options work together; their own class knows how."""
    method = settings.algorithm.adv_estimator
    try:
        config = settings.credit_config()
        if method in credit_names():
            check_options(method, config)
    except ConfigError as error:
        findings.problems.append(error)
    except RegistryError as error:
        findings.problem("algorithm.adv_estimator", "must load", method, str(error))


def _check_needs(estimator: str, values: ConfigValues, findings: Findings) -> None:
    try:
        needs = credit_needs(estimator)
    except RegistryError:
        return  # reported by check_credit
    if "entropy" in needs and values.flag("algorithm.rollout_correction.bypass_mode"):
        findings.problem(
            "algorithm.rollout_correction.bypass_mode",
            f"must be false: {estimator} needs the policy's entropy, which the pass over the old "
            "log-probabilities computes",
            True,
            "Leave it out.",
        )
    if "value" in needs and not values.flag("critic.enable"):
        findings.problem(
            "critic.enable",
            f"must be true: {estimator} needs the values of a critic",
            values.get("critic.enable"),
            f"Set critic.enable=true, or choose credit={estimator}, which does so.",
        )
