"""The door of this package: rows in, credit out, whatever the order of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Importing the built-in methods registers them.
from megatron_agent.credit import (  # noqa: F401
    gae,
    gigpo,
    grpo,
    hgpo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    step_reinforce,
)
from megatron_agent.credit.config import CreditConfig
from megatron_agent.credit.penalty import check_penalty_mode
from megatron_agent.credit.registry import credit_facts, credit_method
from megatron_agent.credit.result import CreditResult
from megatron_agent.credit.rows import CreditRows
from megatron_agent.errors import ConfigError, CreditError

_REMEDIES = {
    "anchor": "Let the environment return an anchor and digest it with anchor_digest.",
    "value": "Train with a critic (critic.enable=true) and hand its values over.",
}


def compute_credit(name: str, rows: CreditRows, config: CreditConfig) -> CreditResult:
    """Compute the advantage of every row.

    Rows are sorted by (group, session, step) before the method sees them and put back after, so
    the result of a row (and each metric) is the same to the last bit whatever order the rows came
    in.

    Args:
        name: credit method, e.g. ``gigpo`` or ``grpo``; a value of ``algorithm.adv_estimator``.
        rows: real rows only, without padding, of whole groups.
        config: options, the same for every method.

    Returns:
        Credit in the order of ``rows``.

    Raises:
        RegistryError: no method has this name.
        ConfigError: as `check_options`.
        CreditError: the rows are not valid or lack a column that the method needs, or the method
            did not give one finite number per row.

    Example:
        >>> rows = CreditRows.from_keys(
        ...     ["t_1_0", "t_0_0"], step_reward_N=[0, 2], episode_return_N=[0, 2],
        ...     action_valid_N=[True, True])
        >>> compute_credit("grpo", rows, CreditConfig(gamma=0.95)).advantage_N.tolist()
        [-1.0, 1.0]
    """
    method = credit_method(name)
    check_options(name, config)
    rows.validate()
    _check_needs(name, credit_facts(name).needs, rows)
    order = rows.canonical_order_N
    try:
        # A square that overflows makes a deviation of inf and an advantage of 0, which looks right.
        with np.errstate(over="raise", invalid="ignore"):
            result = method(rows.take(order), config)
    except FloatingPointError as error:
        raise _too_large(name, rows, str(error)) from error
    _check_result(name, result, rows, order)
    position_N = np.empty_like(order)
    position_N[order] = np.arange(rows.num_rows)
    return result.take(position_N)


def check_options(name: str, config: CreditConfig) -> None:
    """Check that a method can do what the options ask for; `compute_credit` does so too.

    Raises:
        RegistryError: no method has this name.
        ConfigError: the weights leave the method nothing to compare, or the penalty goes to a
            level that the method has not.
    """
    levels = credit_facts(name).levels_with(config)
    if not levels and config.episode_advantage_w == 0:
        raise ConfigError(
            "algorithm.gigpo.episode_advantage_w",
            f"must not be 0 with {name}, which weighs its episode level by it and has no other",
            config.episode_advantage_w,
            "Use 1.0.",
        )
    check_penalty_mode(name, levels, config)


def _check_needs(name: str, needs: Sequence[str], rows: CreditRows) -> None:
    for column in needs:
        if getattr(rows, f"{column}_N") is None:
            raise CreditError(
                f"credit method {name!r} needs {column}_N, one value per row, got None. "
                f"{_REMEDIES.get(column, 'Hand it over with the rows.')}"
            )


def _check_result(name: str, result: CreditResult, rows: CreditRows, order: np.ndarray) -> None:
    if not isinstance(result, CreditResult):
        raise CreditError(
            f"credit method {name!r} must return a CreditResult, got {type(result).__name__}. "
            "Fix the method."
        )
    for part in ("advantage", "return", "episode_advantage", "step_advantage", "penalty"):
        what, value_N = part.replace("_", " "), getattr(result, f"{part}_N")
        is_array = isinstance(value_N, np.ndarray) and value_N.dtype.kind in "fiu"
        if not is_array or value_N.shape != (rows.num_rows,):
            found = f"shape {value_N.shape}" if is_array else type(value_N).__name__
            raise CreditError(
                f"credit method {name!r} must give one {what} per row, shape ({rows.num_rows},), "
                f"got {found}. Fix the method."
            )
        bad = np.flatnonzero(~np.isfinite(value_N))
        if bad.size:
            place = rows.place(int(order[bad[0]]))
            raise _too_large(name, rows, f"{what} of {value_N[bad[0]]} at {place}")
    for metric, value in result.metrics.items():
        if not isinstance(value, int | float | np.number):
            raise CreditError(
                f"credit method {name!r} must give a number as {metric}, got {value!r}. "
                "Fix the method."
            )
        if not np.isfinite(value):
            raise _too_large(name, rows, f"{metric} of {value}")


def _too_large(name: str, rows: CreditRows, found: str) -> CreditError:
    """Numbers that float64 cannot hold come from rewards near its limits, or from the method."""
    size_N = np.maximum(np.abs(rows.step_reward_N), np.abs(rows.episode_return_N))
    row = int(np.argmax(size_N))
    return CreditError(
        f"credit method {name!r} must give finite numbers, got {found}. The largest reward or "
        f"return is {size_N[row]:g} at {rows.place(row)}: scale rewards to the size of 1, or fix "
        "the method."
    )
