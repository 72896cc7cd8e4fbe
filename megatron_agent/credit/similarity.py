"""Step groups by text similarity: states that read nearly the same count as one.

Inside one task group the distinct texts are put into a fixed order (shorter first, then
alphabetical). The first one leads a group; each later text joins the first leader that it is
similar enough to, or leads a group of its own. Every text is therefore similar to its leader; two
followers may be less similar to each other, but likeness never wanders along a chain. Since the
order is that of the texts, the groups depend on which texts there are and on nothing else: not on
the order of rows, on names of groups and sessions, or on how often a text occurs.

**Measure.** Two texts of lengths a and b with a longest common subsequence of c score
``2c / (a + b)``: over characters (``character``), or over words and punctuation marks
(``token``). The reference implementation (langfengQ/verl-agent) uses ``difflib``'s ratio, the same
formula with c counted in blocks that are found greedily. Those blocks are a common subsequence, so
the score here is never below difflib's, whose score moreover depends on the order of the two texts
and, from 200 characters on, leaves out frequent characters.

**Numbers.** By characters "drawer 1" and "drawer 2" are 0.875 alike, and whole observations about
them 0.97 or more, yet they are two states. With ``keep_numbers`` texts are compared only when
their numbers and ids are equal, one by one (`text_tokens.numbers_and_ids`).

**Cost.** At worst quadratic in the distinct texts of one task group that share their numbers. Most
pairs are told apart by their lengths and by how often each character occurs, without looking at
the texts themselves (`text_leaders`). For the worst there is a bound for each task group,
``max_comparisons``. Texts that share their numbers are compared among themselves, the smallest
such set first, each in the order above. Where the bound is reached the search ends, and every text
of the task group that has no leader by then leads a group of its own: it is grouped by equality.
That is always safe, since it compares only what is the same. As the bound counts work and not
time, the groups still depend on the texts of the task group alone.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from megatron_agent.credit.options import DEFAULT_MAX_COMPARISONS, SimilarityMeasure
from megatron_agent.credit.text_leaders import Budget, leaders
from megatron_agent.credit.text_tokens import numbers_and_ids, tokens
from megatron_agent.errors import CreditError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class SimilarityGroups:
    """Step groups of N rows."""

    code_N: NDArray[np.int64]
    """The row's step group, 0..num_groups-1; rows of two task groups never share one."""
    num_groups: int
    by_equality_N: NDArray[np.bool_]
    """Rows whose text lies beyond the bound: they share a group with equal texts only."""
    seconds: float
    """Time it took."""


def similarity_codes(
    texts_N: NDArray[np.object_] | Sequence[str],
    group_code_N: NDArray[np.integer],
    *,
    threshold: float,
    measure: SimilarityMeasure = "character",
    keep_numbers: bool = True,
    max_comparisons: int = DEFAULT_MAX_COMPARISONS,
) -> SimilarityGroups:
    """Group rows of one task group whose texts are similar, see the head of this file.

    Args:
        texts_N: the state of each row as text.
        group_code_N: task group of each row.
        threshold: lowest score of texts that count as similar, in (0, 1]; 1 asks for equality.
        measure: ``character``, or ``token`` for words and punctuation marks.
        keep_numbers: texts whose numbers or ids differ are never similar.
        max_comparisons: work per task group, in comparisons of two texts of about 300 characters
            (`text_leaders.LETTER_PAIRS_PER_COMPARISON`); beyond it texts are grouped by equality.

    Raises:
        CreditError: an option that cannot be, a state that is no text, or columns of two lengths.

    Example:
        >>> texts = ["You see drawer 1.", "You see the drawer 1.", "You see drawer 2."]
        >>> one_task = np.zeros(3, dtype=int)
        >>> similarity_codes(texts, one_task, threshold=0.8).code_N.tolist()
        [1, 1, 0]
        >>> similarity_codes(texts, one_task, threshold=0.8, keep_numbers=False).code_N.tolist()
        [0, 0, 0]
    """
    started = time.perf_counter()
    _check_options(threshold, measure, keep_numbers, max_comparisons)
    texts = texts_N.tolist() if isinstance(texts_N, np.ndarray) else list(texts_N)
    _check_columns(texts, group_code_N)

    row_keys = list(zip(np.asarray(group_code_N).tolist(), texts, strict=True))
    numbers_of = {
        text: numbers_and_ids(text) if keep_numbers else () for text in dict.fromkeys(texts)
    }
    comparable: dict[tuple[int, tuple[str, ...]], list[str]] = defaultdict(list)
    for group_code, text in dict.fromkeys(row_keys):
        comparable[group_code, numbers_of[text]].append(text)

    budget_of = {group_code: Budget.of(max_comparisons) for group_code, _ in comparable}
    code_of: dict[tuple[int, str], int] = {}
    beyond: set[tuple[int, str]] = set()
    num_groups = 0
    # Small sets first: one large set cannot take the comparisons of all the others.
    for (group_code, _), block in sorted(
        comparable.items(), key=lambda item: (item[0][0], len(item[1]), item[0][1])
    ):
        texts_of_leaders, rest = _followers(block, threshold, measure, budget_of[group_code])
        beyond.update((group_code, text) for text in rest)
        texts_of_leaders += [[text] for text in rest]
        for code, followers in enumerate(texts_of_leaders, start=num_groups):
            code_of |= dict.fromkeys(((group_code, text) for text in followers), code)
        num_groups += len(texts_of_leaders)
    code_N = np.fromiter(map(code_of.__getitem__, row_keys), np.int64, len(row_keys))
    by_equality_N = np.fromiter(map(beyond.__contains__, row_keys), np.bool_, len(row_keys))

    seconds = time.perf_counter() - started
    logger.debug(
        "similarity: %d rows, %d distinct states, %d of them by equality, %d step groups, %.3f s",
        len(texts), len(code_of), len(beyond), num_groups, seconds,
    )  # fmt: skip
    return SimilarityGroups(code_N, num_groups, by_equality_N, seconds)


def _followers(
    texts: Sequence[str], threshold: float, measure: SimilarityMeasure, budget: Budget
) -> tuple[list[list[str]], list[str]]:
    """Texts by leader, each list beginning with the leader itself; and texts beyond the budget."""
    if len(texts) == 1:
        return [list(texts)], []
    if budget.is_spent:
        return [], sorted(texts)
    # Sorted before letters are made up for tokens: what the bounds by counts let through hangs on
    # the letters, and with it what the search costs.
    texts = sorted(texts)
    symbols_of = dict(zip(texts, _as_symbols(texts, measure), strict=True))
    texts.sort(key=lambda text: len(symbols_of[text]))
    leader_D = leaders([symbols_of[text] for text in texts], threshold, budget)
    groups: dict[int, list[str]] = defaultdict(list)
    for text, leader in zip(texts, leader_D.tolist(), strict=True):
        groups[leader].append(text)
    rest = groups.pop(-1, [])
    return list(groups.values()), rest


def _as_symbols(texts: Sequence[str], measure: SimilarityMeasure) -> Sequence[str]:
    """Strings to compare letter by letter: the texts, or one made-up letter for each token."""
    if measure == "character":
        return texts
    letter_of: dict[str, str] = {}
    symbols = []
    for text in texts:
        for token in (words := tokens(text)):
            letter_of.setdefault(token, _letter(len(letter_of)))
        symbols.append("".join(map(letter_of.__getitem__, words)))
    return symbols


def _letter(number: int) -> str:
    """A character per number, leaving out the surrogates, which are none."""
    return chr(number if number < 0xD800 else number + 0x800)


def _check_options(
    threshold: object, measure: object, keep_numbers: object, max_comparisons: object
) -> None:
    is_number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if not (is_number and 0 < threshold <= 1):  # type: ignore[operator]
        raise CreditError(
            f"similarity threshold must be a number above 0 and at most 1, got {threshold!r}. "
            "Use 0.9; 1 asks for equal texts."
        )
    if measure not in get_args(SimilarityMeasure):
        raise CreditError(
            f"similarity measure must be one of {', '.join(get_args(SimilarityMeasure))}, got "
            f"{measure!r}. Use 'character', the default."
        )
    if not isinstance(keep_numbers, bool):
        raise CreditError(
            f"similarity keep_numbers must be true or false, got {keep_numbers!r}. "
            "Write True or False, without quotes."
        )
    is_integer = isinstance(max_comparisons, int) and not isinstance(max_comparisons, bool)
    if not is_integer or max_comparisons < 1:  # type: ignore[operator]
        raise CreditError(
            f"similarity max_comparisons must be an integer >= 1, got {max_comparisons!r}. "
            f"Use {DEFAULT_MAX_COMPARISONS}, the default."
        )


def _check_columns(texts: Sequence[object], group_code_N: NDArray[np.integer]) -> None:
    if len(group_code_N) != len(texts):
        raise CreditError(
            f"similarity grouping needs one task group per text, got {len(group_code_N)} group "
            f"codes for {len(texts)} texts. Hand over columns of the same rows."
        )
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise CreditError(
                f"similarity grouping needs states as text, got {type(text).__name__} at row {row}."
                " Let the environment give the state as text, or group by equality."
            )
