"""Hop 7, credit: rows become advantages. numpy only; no torch, verl or Ray.

Reading order: `rows` (what comes in), `config` and `options`, one file per method (`gigpo`, `hgpo`,
`grpo`, `rloo`, `reinforce_plus_plus` and its baseline form, `step_reinforce`, `gae`), what they
compare by (`episode`, `step_groups`, `penalty`), `segments` (the arithmetic), `assembly` and
`metrics`, `result` (what goes out), `registry` (other methods), `compute` (the call). Beside it
stand `row_weights` (who weighs what in the loss) and `group_filter` (which groups can teach).
"""

from megatron_agent.credit.compute import check_options, compute_credit
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.group_filter import GroupSpread, groups_with_spread
from megatron_agent.credit.options import HgpoOptions, SimilarityOptions
from megatron_agent.credit.registry import (
    MethodFacts,
    credit_facts,
    credit_method,
    credit_names,
    credit_needs,
    register_credit,
)
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.row_weights import RowWeights, row_weights
from megatron_agent.credit.rows import CreditRows

__all__ = [
    "CreditConfig",
    "CreditResult",
    "CreditRows",
    "GroupSpread",
    "HgpoOptions",
    "MethodFacts",
    "RowWeights",
    "SimilarityOptions",
    "check_options",
    "compute_credit",
    "credit_facts",
    "credit_method",
    "credit_names",
    "credit_needs",
    "groups_with_spread",
    "register_credit",
    "row_weights",
]
