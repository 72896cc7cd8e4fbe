"""Lines of the ledger, one record type each.

A group is one admission of a task: it has an id of its own (verl's ``uid``) and is played
``rollout.n`` times. The order of the lines is the order of what happened; a resumed attempt takes
back every line after the checkpoint that it starts from.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from megatron_agent.errors import MegatronAgentError


class LedgerError(MegatronAgentError, ValueError):
    """A ledger that cannot be read, or that contradicts itself or the checkpoints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A process began to train.

    Args:
        attempt: 1 for the first start of the run.
        resumed_step: step of the checkpoint that it goes on from; 0 for none.
        mode: ``trainer.v1.trainer_mode``.
        tasks_per_epoch: tasks that the data loader gives before one comes again.
    """

    kind: ClassVar[str] = "attempt"
    attempt: int
    resumed_step: int
    mode: str
    tasks_per_epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted:
    """Tasks were handed to the rollout; ``groups`` maps group id to task id, in data order."""

    kind: ClassVar[str] = "admitted"
    step: int
    groups: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOutcome:
    """What became of a group: mean return (None where the credit is verl's own), and how many
    sessions succeeded and failed.
    """

    group: str
    task_id: str
    return_mean: float | None
    num_success: int
    num_failed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The update of a step is done; ``removed`` were played in it and not trained on."""

    kind: ClassVar[str] = "trained"
    step: int
    groups: tuple[GroupOutcome, ...]
    removed: tuple[GroupOutcome, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Evicted:
    """Groups that an asynchronous mode threw away, too old or without a finished session."""

    kind: ClassVar[str] = "evicted"
    step: int
    groups: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SetAside:
    """The run was asked to stop while the episodes of a step were played; the tasks of the step are
    given back to the data loader, and admitted again when the step is taken.
    """

    kind: ClassVar[str] = "set_aside"
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The checkpoint of a step is complete on disk."""

    kind: ClassVar[str] = "checkpoint"
    step: int


Event = Attempt | Admitted | Trained | Evicted | SetAside | Checkpoint
_TYPES: dict[str, type[Event]] = {
    kind.kind: kind for kind in (Attempt, Admitted, Trained, Evicted, SetAside, Checkpoint)
}


def to_line(event: Event) -> str:
    """One line of JSON.

    Example:
        >>> to_line(Checkpoint(step=3))
        '{"kind": "checkpoint", "step": 3}'
    """
    return json.dumps({"kind": event.kind, **dataclasses.asdict(event)})


def from_line(line: str, *, place: str) -> Event:
    """The event of a line.

    Raises:
        LedgerError: naming ``place``, when the line is none that :func:`to_line` writes.
    """
    try:
        record: dict[str, Any] = json.loads(line)
        kind = _TYPES[record.pop("kind")]
        for name in ("groups", "removed"):
            if isinstance(record.get(name), list):
                record[name] = tuple(
                    GroupOutcome(**value) if isinstance(value, dict) else value
                    for value in record[name]
                )
        return kind(**record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(
            f"{place} must be an event of the ledger, got {line[:80]!r}. The file is only ever "
            "appended to; restore it from a copy."
        ) from error
