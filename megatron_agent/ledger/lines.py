"""Lines of the ledger: JSON, one event each, checked when they are read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from megatron_agent.ledger.events import (
    MODES,
    Admitted,
    Attempt,
    Checkpoint,
    Event,
    Evicted,
    GroupOutcome,
    LedgerError,
    SetAside,
    Trained,
)

Reader = Callable[[str, Any], Any]
"""Takes a field's place and its value, gives what the record holds; raises `_WrongError`."""


class _WrongError(ValueError):
    """Where in the line, and what must hold there."""


def to_line(event: Event) -> str:
    """One line of JSON.

    Example:
        >>> to_line(Checkpoint(step=3))
        '{"kind": "checkpoint", "step": 3}'
    """
    return json.dumps({"kind": event.kind, **dataclasses.asdict(event)})


def from_line(line: bytes | str, *, place: str) -> Event:
    """The event of a line.

    Raises:
        LedgerError: naming ``place`` and what must hold there, when the line is none that
            :func:`to_line` writes.

    Example:
        >>> from_line('{"kind": "checkpoint", "step": 3}', place="line 1")
        Checkpoint(step=3)
    """
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise _WrongError("it must be an object")
        kind = record.pop("kind", None)
        if not isinstance(kind, str) or kind not in _KINDS:
            raise _WrongError(f"kind must be one of {', '.join(_KINDS)}")
        event: Event = _read(*_KINDS[kind], "", record)
        return event
    except ValueError as error:  # of JSON and of UTF-8 too
        rule = str(error) if isinstance(error, _WrongError) else "it must be JSON in UTF-8"
        shown = line if isinstance(line, str) else line.decode("utf-8", "backslashreplace")
        raise LedgerError(
            f"{place} must be an event of the ledger ({rule}), got {shown[:80]!r}. The file is "
            "only ever appended to; restore it from a copy."
        ) from error


def is_cut_short(line: bytes) -> bool:
    """Whether a line can be the beginning of a write that a kill ended: what is whole JSON, or
    begins like no event, is something else.

    Example:
        >>> is_cut_short(b'{"kind": "adm'), is_cut_short(b'{"kind": "other"}')
        (True, False)
    """
    try:
        json.loads(line)
    except ValueError:
        begin = b'{"kind": "'
        return line[: len(begin)] == begin[: len(line)]
    return False


def _read(cls: type[Any], readers: dict[str, Reader], place: str, record: dict[str, Any]) -> Any:
    if record.keys() != readers.keys():
        names = ", ".join(record) or "none"
        raise _WrongError(f"{place or 'it'} must have the fields {', '.join(readers)}, not {names}")
    prefix = f"{place}." if place else ""
    return cls(**{name: read(prefix + name, record[name]) for name, read in readers.items()})


def _count(place: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _WrongError(f"{place} must be an integer >= 0")
    return value


def _text(place: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongError(f"{place} must be text")
    return value


def _mode(place: str, value: Any) -> str:
    if value not in MODES:
        raise _WrongError(f"{place} must be one of {', '.join(MODES)}")
    return str(value)


def _mean(place: str, value: Any) -> float | None:
    if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
        raise _WrongError(f"{place} must be a number or null")
    return value


def _texts(place: str, value: Any) -> tuple[str, ...]:
    return tuple(_text(f"{place}[{i}]", part) for i, part in enumerate(_list(place, value)))


def _tasks(place: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _WrongError(f"{place} must be an object")
    return {group: _text(f"{place}.{group}", task_id) for group, task_id in value.items()}


def _outcomes(place: str, value: Any) -> tuple[GroupOutcome, ...]:
    return tuple(_outcome(f"{place}[{i}]", part) for i, part in enumerate(_list(place, value)))


def _outcome(place: str, value: Any) -> GroupOutcome:
    if not isinstance(value, dict):
        raise _WrongError(f"{place} must be an object")
    outcome: GroupOutcome = _read(GroupOutcome, _OUTCOME, place, value)
    return outcome


def _list(place: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _WrongError(f"{place} must be a list")
    return value


_OUTCOME: dict[str, Reader] = {
    "group": _text,
    "task_id": _text,
    "return_mean": _mean,
    "num_success": _count,
    "num_failed": _count,
}
_KINDS: dict[str, tuple[type[Event], dict[str, Reader]]] = {
    Attempt.kind: (
        Attempt,
        {"attempt": _count, "resumed_step": _count, "mode": _mode, "tasks_per_epoch": _count},
    ),
    Admitted.kind: (Admitted, {"step": _count, "groups": _tasks}),
    Trained.kind: (Trained, {"step": _count, "groups": _outcomes, "removed": _outcomes}),
    Evicted.kind: (Evicted, {"step": _count, "groups": _texts}),
    SetAside.kind: (SetAside, {"step": _count}),
    Checkpoint.kind: (Checkpoint, {"step": _count}),
}
