"""What credit is computed from: one row per agent step, as parallel arrays.

Rows may come in any order. What places a row in its group, session and time is its key
``{uid}_{session}_{step}``, never its position. Padding rows are not rows: drop them before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megatron_agent.credit.segments import codes_of
from megatron_agent.errors import CreditError

_DTYPE_KINDS = {
    "group_N": "O",
    "session_N": "iu",
    "step_N": "iu",
    "anchor_N": "O",
    "anchor_text_N": "O",
    "action_valid_N": "b",
    "failed_N": "b",
}
"""Allowed numpy kinds per field; every other field must be float64."""

OPTIONAL_COLUMNS = ("anchor", "anchor_text", "failed", "value", "log_prob", "entropy")
"""Columns (without ``_N``) that a batch may lack; a method names those that it needs."""

_MAX_DIGITS = 18
"""Of a session or step number: what an int64 surely holds."""

_MUST_BE_FINITE = ("step_reward_N", "episode_return_N", "value_N", "log_prob_N", "entropy_N")


@dataclass(frozen=True, kw_only=True, eq=False)
class CreditRows:
    """N agent steps. Treat the arrays as read-only: derived facts are cached.

    Example:
        >>> rows = CreditRows.from_keys(
        ...     ["task_a_0_0", "task_a_0_1", "task_a_1_0"],
        ...     anchor_N=["start", "door", "start"],
        ...     step_reward_N=[0.0, 1.0, 0.0],
        ...     episode_return_N=[1.0, 1.0, 0.0],
        ...     action_valid_N=[True, True, False],
        ... )
        >>> rows.group_N[0], rows.session_N.tolist(), rows.step_N.tolist()
        ('task_a', [0, 0, 1], [0, 1, 0])
    """

    group_N: NDArray[np.object_]
    """uid of the task group: its sessions started in the same state and are compared."""
    session_N: NDArray[np.integer]
    """Session number inside the group."""
    step_N: NDArray[np.integer]
    """0 at the first step of a session, then 1, 2, ... without gaps."""
    step_reward_N: NDArray[np.float64]
    """Raw environment reward of the step, before any penalty."""
    episode_return_N: NDArray[np.float64]
    """The session's total reward, the same on each of its rows."""
    action_valid_N: NDArray[np.bool_]
    anchor_N: NDArray[np.object_] | None = None
    """Digest of the state before the action, see `megatron_agent.anchors.anchor_digest`. For
    methods that compare steps."""
    anchor_text_N: NDArray[np.object_] | None = None
    """The state before the action as text, to group steps by similarity."""
    failed_N: NDArray[np.bool_] | None = None
    """The episode ended by a failure (crash, time-out), not by the environment; the same on each
    row of a session."""
    value_N: NDArray[np.float64] | None = None
    """A critic's value of the state before the step, for methods that use one."""
    log_prob_N: NDArray[np.float64] | None = None
    """Log-probability of the response (sum over its tokens), for methods that use it."""
    entropy_N: NDArray[np.float64] | None = None
    """Policy entropy in nats (mean over the response's tokens), for methods that use it."""

    @property
    def num_rows(self) -> int:
        return len(self.group_N)

    @cached_property
    def group_code_N(self) -> NDArray[np.int64]:
        """The row's group as a number; numbers follow the order of the uids and may have gaps."""
        return codes_of(self.group_N, ordered=True)[0]

    @cached_property
    def canonical_order_N(self) -> NDArray[np.intp]:
        """Permutation that sorts the rows by (group, session, step)."""
        return np.lexsort((self.step_N, self.session_N, self.group_code_N))

    def take(self, order: NDArray[np.intp]) -> CreditRows:
        """The rows at these positions, in this order."""
        columns: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            column = getattr(self, name)
            columns[name] = None if column is None else column[order]
        taken = CreditRows(**columns)
        # Text lies all over memory: looking at every uid again is dear in a large batch.
        if "group_code_N" in self.__dict__:
            taken.__dict__["group_code_N"] = self.group_code_N[order]
        return taken

    @classmethod
    def from_keys(
        cls,
        keys: Sequence[str],
        *,
        step_reward_N: ArrayLike,
        episode_return_N: ArrayLike,
        action_valid_N: ArrayLike,
        anchor_N: ArrayLike | None = None,
        anchor_text_N: ArrayLike | None = None,
        failed_N: ArrayLike | None = None,
        value_N: ArrayLike | None = None,
        log_prob_N: ArrayLike | None = None,
        entropy_N: ArrayLike | None = None,
    ) -> CreditRows:
        """Build rows from keys ``{uid}_{session}_{step}`` and columns in the order of the keys.

        The uid may hold underscores: keys are split from the right. Columns may be lists or
        arrays of any number type. The result is not validated yet.

        Raises:
            CreditError: a key of another form, a number that is none, or a flag that is neither
                true nor false.
        """
        group_N, session_N, step_N = _split_keys(keys)

        def floats(name: str, column: ArrayLike | None) -> NDArray[np.float64] | None:
            return None if column is None else _floats(name, column)

        def labels(column: ArrayLike | None) -> NDArray[np.object_] | None:
            return None if column is None else np.asarray(column, dtype=object)

        return cls(
            group_N=group_N,
            session_N=session_N,
            step_N=step_N,
            anchor_N=labels(anchor_N),
            anchor_text_N=labels(anchor_text_N),
            step_reward_N=_floats("step_reward_N", step_reward_N),
            episode_return_N=_floats("episode_return_N", episode_return_N),
            action_valid_N=_bools("action_valid_N", action_valid_N),
            failed_N=None if failed_N is None else _bools("failed_N", failed_N),
            value_N=floats("value_N", value_N),
            log_prob_N=floats("log_prob_N", log_prob_N),
            entropy_N=floats("entropy_N", entropy_N),
        )

    def validate(self) -> None:
        """Check that credit can be computed from these rows.

        Raises:
            CreditError: no rows, arrays of another length or type, a missing anchor, a row that
                occurs twice, steps that are not 0..T-1, a value that is not finite, or an episode
                return or failure that differs between rows of a session. The message names group,
                session and step.
        """
        self._check_columns()
        self._check_labels()
        self._check_keys()
        self._check_values()

    def place(self, row: int) -> str:
        """Name a row for a person: its group, session and step."""
        return (
            f"group {self.group_N[row]!r}, session {self.session_N[row]}, step {self.step_N[row]}"
        )

    def _check_columns(self) -> None:
        if self.num_rows == 0:
            raise CreditError("credit needs at least one row, got 0 rows. Check the rollout.")
        for name in (f.name for f in fields(self)):
            column = getattr(self, name)
            if column is None:
                continue
            kinds = _DTYPE_KINDS.get(name)
            if isinstance(column, np.ndarray):
                good = column.dtype.kind in kinds if kinds else column.dtype == np.float64
                if good and column.shape == (self.num_rows,):
                    continue
                found = f"{column.dtype} of shape {column.shape}"
            else:
                found = type(column).__name__
            raise CreditError(
                f"{name} must be a {_dtype_in_words(kinds)} array of shape ({self.num_rows},), one "
                f"value per row, got {found}. Build the rows with CreditRows.from_keys."
            )

    def _check_labels(self) -> None:
        for name, may_be_empty, remedy in (
            ("group_N", False, "Give the uid of the task group as text."),
            (
                "anchor_N",
                False,
                "Let the environment return an anchor and digest it with anchor_digest.",
            ),
            (
                "anchor_text_N",
                True,
                "Anchors of other types are compared by equality: set "
                "algorithm.gigpo.enable_similarity=false.",
            ),
        ):
            column = getattr(self, name)
            if column is None:
                continue
            labels = column.tolist()
            if _all_text(labels, may_be_empty=may_be_empty):
                continue
            row = next(
                i
                for i, label in enumerate(labels)
                if not (isinstance(label, str) and (label or may_be_empty))
            )
            rule = "text" if may_be_empty else "text that is not empty"
            raise CreditError(
                f"{name} must be {rule}, got {labels[row]!r} at {self.place(row)}. {remedy}"
            )

    def _check_keys(self) -> None:
        order = self.canonical_order_N
        group_code_N, session_N, step_N = (
            x[order] for x in (self.group_code_N, self.session_N, self.step_N)
        )
        same_session = (group_code_N[1:] == group_code_N[:-1]) & (session_N[1:] == session_N[:-1])
        # Signed: a difference of unsigned steps would wrap around.
        step_N = step_N.astype(np.int64)
        expected_N = np.zeros_like(step_N)
        expected_N[1:] = np.where(same_session, step_N[:-1] + 1, 0)
        wrong = np.flatnonzero(step_N != expected_N)
        if not wrong.size:
            return
        at = int(wrong[0])
        place = self.place(int(order[at]))
        if at > 0 and same_session[at - 1] and step_N[at] == step_N[at - 1]:
            raise CreditError(
                f"a row must occur once, got {place} more than once. "
                "Drop padding rows before credit."
            )
        raise CreditError(
            f"steps of a session must be 0, 1, 2, ... without gaps, got {place} where step "
            f"{expected_N[at]} was due. Hand over all rows of every session."
        )

    def _check_values(self) -> None:
        for name in _MUST_BE_FINITE:
            column = getattr(self, name)
            if column is None or np.isfinite(column).all():
                continue
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise CreditError(
                f"{name} must be finite, got {column[row]} at {self.place(row)}. "
                "Look for a division by zero where this number is made."
            )
        order = self.canonical_order_N
        step_N = self.step_N[order]
        for name, what in (("episode_return_N", "total"), ("failed_N", "outcome")):
            column = getattr(self, name)
            if column is None:
                continue
            value_N = column[order]
            differs = np.flatnonzero((value_N[1:] != value_N[:-1]) & (step_N[1:] > 0))
            if differs.size:
                at = int(differs[0]) + 1
                raise CreditError(
                    f"{name} must be the same on all rows of a session, got {value_N[at]} at "
                    f"{self.place(int(order[at]))} and {value_N[at - 1]} one step before. "
                    f"Give every row the session's {what}."
                )


def _all_text(labels: Sequence[object], *, may_be_empty: bool) -> bool:
    """Labels repeat, so one pass that collects the distinct ones is nearly all there is to do."""
    try:
        distinct = set(labels)
    except TypeError:  # text can always be put into a set
        return False
    return all(isinstance(label, str) for label in distinct) and (
        may_be_empty or "" not in distinct
    )


def _dtype_in_words(kinds: str | None) -> str:
    names = {"O": "object (str)", "iu": "integer", "b": "bool"}
    return names[kinds] if kinds else "float64"


def _split_keys(
    keys: Sequence[str],
) -> tuple[NDArray[np.object_], NDArray[np.int64], NDArray[np.int64]]:
    group_N = np.empty(len(keys), dtype=object)
    session_N = np.empty(len(keys), dtype=np.int64)
    step_N = np.empty(len(keys), dtype=np.int64)
    for row, key in enumerate(keys):
        uid, _, rest = key.rpartition("_") if isinstance(key, str) else ("", "", "")
        uid, _, session = uid.rpartition("_")
        if not (uid and _is_number(session) and _is_number(rest)):
            raise CreditError(
                f"row key must be '{{uid}}_{{session}}_{{step}}' with session and step as numbers "
                f"without sign, got {key!r} at row {row}. Use StepSample.key."
            )
        group_N[row], session_N[row], step_N[row] = uid, int(session), int(rest)
    return group_N, session_N, step_N


def _floats(name: str, column: ArrayLike) -> NDArray[np.float64]:
    """Numbers as float64; what would lose a part on the way, text or complex, is refused."""
    try:
        numbers = np.asarray(column)
        # None would become NaN.
        has_none = numbers.dtype.kind == "O" and None in numbers.ravel().tolist()
        if numbers.dtype.kind not in "biufO" or has_none:
            raise TypeError(f"{numbers.dtype} values {numbers.ravel()[:1].tolist()}")
        return numbers.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise CreditError(
            f"{name} must hold one real number per row, got {error}. Give floats."
        ) from error


def _bools(name: str, column: ArrayLike) -> NDArray[np.bool_]:
    """Flags as bools. Not by truth: None or the text "False" must not pass for a flag."""
    try:
        flags = np.asarray(column)
        values = [] if flags.dtype.kind == "b" else flags.ravel().tolist()
        wrong = [value for value in values if value not in (0, 1)]
    except ValueError:  # lists of several lengths
        wrong = [column]
    if wrong:
        raise CreditError(
            f"{name} must hold true or false per row, got {wrong[0]!r}. Give bools, or 0 and 1."
        )
    return flags.astype(bool)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
