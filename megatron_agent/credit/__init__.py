"""Hop 7, credit: rows become advantages. numpy only; no torch, verl or Ray.

Reading order: `rows` (what comes in), `config`, `gigpo` and `grpo` (the methods, with `episode`),
`segments` (their arithmetic), `penalty`, `metrics`, `result` (what goes out), `registry` (other
methods), `compute` (the call).
"""

from megatron_agent.credit.compute import compute_credit
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.registry import credit_method, credit_names, register_credit
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows

__all__ = [
    "CreditConfig",
    "CreditResult",
    "CreditRows",
    "compute_credit",
    "credit_method",
    "credit_names",
    "register_credit",
]
