"""Proof from the ledger that no task was lost or trained on twice, whatever interrupted the run.

What counts is the *effective* history: an attempt that resumes from the checkpoint of step k takes
back everything that was written after it, and a step that was set aside its tasks. In what is left

1. an attempt comes first, and every other one goes on from a checkpoint that is there;
2. steps are trained one after another, none missing, none twice;
3. a group is admitted once, and trained on, removed or evicted once, as the same task;
4. within an epoch of the data no task comes twice, so that none is left out either;
5. a step that is taken again begins with the tasks that it began with the first time;
6. a mode that plays a step's groups within the step admits them for that step and leaves none of
   them behind;
7. in the others no group is open for more than :data:`MAX_OPEN_STEPS` steps.

Groups that were admitted and have no end yet are *open*: played when the run stopped. The rules
themselves stand in ``rules.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_agent.ledger import rules
from megatron_agent.ledger.events import (
    Admitted,
    Attempt,
    Checkpoint,
    Event,
    Evicted,
    SetAside,
    Trained,
)
from megatron_agent.ledger.rules import fates_of, first_step

MAX_OPEN_STEPS = 32
"""Steps that a group of an asynchronous mode may be open for. verl throws away what is finished and
older than ``trainer.v1.sampler.max_off_policy_threshold`` steps, by default 8; a group may also be
played for long. Four times that much is a group that nobody waits for any more.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerReport:
    """What a ledger says."""

    num_attempts: int
    last_step: int
    num_admitted: int
    num_trained: int
    num_removed: int
    num_evicted: int
    num_open: int
    num_retaken_steps: int
    """Steps that were trained and taken back by a resume."""
    problems: tuple[str, ...]

    @property
    def text(self) -> str:
        """A few lines for a terminal."""
        lines = [
            f"{self.num_attempts} attempt(s), {self.last_step} step(s), "
            f"{self.num_retaken_steps} of them taken again after an interruption",
            f"{self.num_admitted} groups admitted: {self.num_trained} trained on, "
            f"{self.num_removed} removed, {self.num_evicted} evicted, {self.num_open} open",
        ]
        verdict = "no task was lost or trained on twice"
        return "\n".join([*lines, *(self.problems or (verdict,))])


def effective_events(events: Sequence[Event]) -> list[Event]:
    """The history that the newest weights have seen.

    Example:
        >>> kept = effective_events([
        ...     Attempt(attempt=1, resumed_step=0, mode="sync", tasks_per_epoch=2),
        ...     Admitted(step=1, groups={"a": "t0"}),
        ...     Attempt(attempt=2, resumed_step=0, mode="sync", tasks_per_epoch=2),
        ...     Admitted(step=1, groups={"b": "t0"}),
        ... ])
        >>> [type(event).__name__ for event in kept]
        ['Attempt', 'Admitted']
    """
    kept: list[Event] = []
    start = first_step(events)
    for event in events:
        if isinstance(event, Attempt):
            # The run's own start, 0 or the checkpoint of another run, takes back everything.
            kept = kept[: _end_of(kept, event.resumed_step)] if event.resumed_step != start else []
        elif isinstance(event, SetAside):
            kept = [
                other
                for other in kept
                if not (isinstance(other, Admitted | Evicted) and other.step == event.step)
            ]
        kept.append(event)
    return kept


def _end_of(events: Sequence[Event], resumed_step: int) -> int:
    """How many events the checkpoint of ``resumed_step`` holds; all, when it is not there."""
    for position in range(len(events) - 1, -1, -1):
        event = events[position]
        if isinstance(event, Checkpoint) and event.step == resumed_step:
            return position + 1
    return len(events)


def check_ledger(
    events: Sequence[Event], *, max_open_steps: int | None = MAX_OPEN_STEPS
) -> LedgerReport:
    """Check a whole ledger; the rules stand at the top of this file.

    Args:
        events: all of the ledger.
        max_open_steps: steps that a group may be open for; None for any number.
    """
    kept = effective_events(events)
    problems = [
        *rules.begins_without_an_attempt(events),
        *rules.unknown_checkpoints(events),
        *rules.steps_out_of_order(kept),
        *rules.groups_without_one_fate(kept),
        *rules.tasks_twice_in_an_epoch(kept),
        *rules.steps_that_began_differently(events),
        *rules.admitted_out_of_step(kept),
        *rules.groups_left_behind(kept),
        *(rules.open_too_long(kept, max_open_steps) if max_open_steps is not None else ()),
    ]
    admitted = [group for event in kept if isinstance(event, Admitted) for group in event.groups]
    fates = fates_of(kept)
    ended = {group for groups in fates.values() for group in groups}
    trained_steps = [event.step for event in kept if isinstance(event, Trained)]
    num_trained_lines = sum(isinstance(event, Trained) for event in events)
    return LedgerReport(
        num_attempts=sum(isinstance(event, Attempt) for event in events),
        last_step=max(trained_steps, default=0),
        num_admitted=len(admitted),
        num_trained=len(fates["trained on"]),
        num_removed=len(fates["removed"]),
        num_evicted=len(fates["evicted"]),
        num_open=len(set(admitted) - ended),
        num_retaken_steps=num_trained_lines - len(trained_steps),
        problems=tuple(problems),
    )
