"""Events of the ledger, one record type each; `lines` writes and reads them.

A group is one admission of a task: it has an id of its own (verl's ``uid``) and is played
``rollout.n`` times. The order of the lines is the order of what happened; a resumed attempt takes
back every line after the checkpoint that it starts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from megatron_agent.errors import MegatronAgentError

MODES = ("sync", "colocate_async", "separate_async")
"""``trainer.v1.trainer_mode``. In the first a step's groups are played within the step."""


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
