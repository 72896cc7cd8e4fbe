"""Groups of options that belong to one part of credit, and the checks all options share."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from megatron_agent.errors import ConfigError

SimilarityMeasure = Literal["character", "token"]

DEFAULT_MAX_COMPARISONS = 1_000_000
"""About two seconds on a slow core, and hundreds of distinct texts per task group stay below it."""


@dataclass(frozen=True, kw_only=True)
class HgpoOptions:
    """Options of `megatron_agent.credit.hgpo`, below ``algorithm.hgpo``.

    Example:
        >>> HgpoOptions(history_length=2).length_weight_alpha
        1.0
    """

    history_length: int = 2
    """Observations before the current one that a step may have to share with its peers (the
    paper's K). 0 leaves the state alone: GiGPO's step level, with HGPO's std."""
    length_weight_alpha: float = 1.0
    """How much more a comparison of longer shared histories weighs; 0 weighs all alike."""
    base_group: bool = False
    """Take the episode level in as the outermost group, with weight 1."""

    def __post_init__(self) -> None:
        check_integer("algorithm.hgpo.history_length", self.history_length, "Use 2.", low=0)
        # A weight of (k + 1) ** alpha: beyond this one comparison alone would count.
        check_number(
            "algorithm.hgpo.length_weight_alpha", self.length_weight_alpha, "Use 1.0.", high=16.0
        )
        check_flag("algorithm.hgpo.base_group", self.base_group)


@dataclass(frozen=True, kw_only=True)
class SimilarityOptions:
    """How steps are grouped by similar text, below ``algorithm.gigpo``.

    Example:
        >>> SimilarityOptions(threshold=0.9).measure
        'character'
    """

    threshold: float = 0.95
    """How alike two texts must be to share a group, in (0, 1]; 1 means equal."""
    measure: SimilarityMeasure = "character"
    """What likeness counts: characters, or whole tokens."""
    keep_numbers: bool = True
    """Never put texts together that hold different numbers, such as ``drawer 1``, ``drawer 2``."""
    max_comparisons: int = DEFAULT_MAX_COMPARISONS
    """Work that comparing the texts of one task group may take, in comparisons of two texts of
    about 300 characters; texts beyond it are grouped by equality (`similarity`)."""

    def __post_init__(self) -> None:
        key = "algorithm.gigpo.similarity_thresh"
        check_number(key, self.threshold, "Use 0.95.", high=1.0)
        if self.threshold == 0:
            raise ConfigError(key, "must be above 0", self.threshold, "Use 0.95.")
        check_choice(
            "algorithm.gigpo.similarity_measure", self.measure, get_args(SimilarityMeasure)
        )
        check_flag("algorithm.gigpo.similarity_keep_numbers", self.keep_numbers)
        check_integer(
            "algorithm.gigpo.similarity_max_comparisons",
            self.max_comparisons,
            f"Use {DEFAULT_MAX_COMPARISONS}.",
            low=1,
        )


def check_number(key: str, value: object, remedy: str, *, high: float = math.inf) -> None:
    """Refuse what is not a finite number in [0, high].

    Raises:
        ConfigError: naming ``key``.
    """
    rule = (
        "must be a finite number >= 0" if high == math.inf else f"must be a number in [0, {high:g}]"
    )
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        good = is_number and math.isfinite(value) and 0 <= value <= high  # type: ignore[arg-type, operator]
    except OverflowError:  # a whole number beyond the floats
        good = False
    if not good:
        raise ConfigError(key, rule, value, remedy)


def check_integer(key: str, value: object, remedy: str, *, low: int) -> None:
    """Refuse what is not an integer of at least ``low``.

    Raises:
        ConfigError: naming ``key``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(key, f"must be an integer >= {low}", value, remedy)


def check_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse what is not one of ``choices``, the first of which is the default.

    Raises:
        ConfigError: naming ``key`` and the nearest choice.
    """
    if isinstance(value, str) and value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else f"Use {choices[0]!r}, the default."
    raise ConfigError(key, f"must be one of {', '.join(choices)}", value, remedy)


def check_flag(key: str, value: object) -> None:
    """Refuse what is not true or false.

    Raises:
        ConfigError: naming ``key``.
    """
    if not isinstance(value, bool):
        remedy = "Write True or False, without quotes."
        raise ConfigError(key, "must be true or false", value, remedy)
