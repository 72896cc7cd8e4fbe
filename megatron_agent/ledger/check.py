"""Proof from the ledger that no task was lost or trained on twice, whatever interrupted the run.

What counts is the *effective* history: an attempt that resumes from the checkpoint of step k takes
back everything that was written after it, and a step that was set aside its tasks. In what is left

1. every attempt goes on from a checkpoint that is there;
2. steps are trained one after another, none missing, none twice;
3. a group is admitted once, and trained on, removed or evicted once;
4. within an epoch of the data no task comes twice, so that none is left out either;
5. a step that is taken again begins with the tasks that it began with the first time;
6. a mode that plays a step's groups within the step leaves none of them behind.

Groups that were admitted and have no end yet are *open*: played when the run stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_agent.ledger.events import (
    Admitted,
    Attempt,
    Checkpoint,
    Event,
    Evicted,
    SetAside,
    Trained,
)


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
    start = _first_step(events)
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


def _first_step(events: Sequence[Event]) -> int:
    return next((event.resumed_step for event in events if isinstance(event, Attempt)), 0)


def _end_of(events: Sequence[Event], resumed_step: int) -> int:
    """How many events the checkpoint of ``resumed_step`` holds; all, when it is not there."""
    for position in range(len(events) - 1, -1, -1):
        event = events[position]
        if isinstance(event, Checkpoint) and event.step == resumed_step:
            return position + 1
    return len(events)


def check_ledger(events: Sequence[Event]) -> LedgerReport:
    """Check a whole ledger; the rules stand at the top of this file."""
    kept = effective_events(events)
    problems = [
        *_unknown_checkpoints(events),
        *_steps_out_of_order(kept),
        *_groups_without_one_fate(kept),
        *_tasks_twice_in_an_epoch(kept),
        *_steps_that_began_differently(events),
        *_groups_left_behind(kept),
    ]
    admitted = [group for event in kept if isinstance(event, Admitted) for group in event.groups]
    fates = _fates(kept)
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


def _fates(events: Sequence[Event]) -> dict[str, list[str]]:
    fates: dict[str, list[str]] = {"trained on": [], "removed": [], "evicted": []}
    for event in events:
        if isinstance(event, Trained):
            fates["trained on"] += [outcome.group for outcome in event.groups]
            fates["removed"] += [outcome.group for outcome in event.removed]
        elif isinstance(event, Evicted):
            fates["evicted"] += event.groups
    return fates


def _unknown_checkpoints(events: Sequence[Event]) -> list[str]:
    written: set[int] = {_first_step(events)}
    problems = []
    for position, event in enumerate(events):
        if isinstance(event, Checkpoint):
            written.add(event.step)
        elif isinstance(event, Attempt) and position > 0 and event.resumed_step not in written:
            problems.append(
                f"attempt {event.attempt} goes on from step {event.resumed_step}, of which the "
                "ledger has no checkpoint"
            )
    return problems


def _steps_out_of_order(events: Sequence[Event]) -> list[str]:
    expected = _first_step(events) + 1
    problems = []
    for event in events:
        if isinstance(event, Trained):
            if event.step != expected:
                problems.append(f"step {event.step} was trained where step {expected} was due")
            expected = event.step + 1
    return problems


def _groups_without_one_fate(events: Sequence[Event]) -> list[str]:
    task_of: dict[str, str] = {}
    problems = []
    for event in events:
        for group, task_id in event.groups.items() if isinstance(event, Admitted) else ():
            if group in task_of:
                problems.append(f"group {group} ({task_id}) was admitted twice")
            task_of[group] = task_id
    counts: Counter[str] = Counter()
    for fate, groups in _fates(events).items():
        counts.update(groups)
        for group in sorted(set(groups) - task_of.keys()):
            problems.append(f"group {group} was {fate} and never admitted")
    for group, count in counts.items():
        if count > 1:
            problems.append(f"group {group} ({task_of.get(group)}) came to an end {count} times")
    return problems


def _tasks_twice_in_an_epoch(events: Sequence[Event]) -> list[str]:
    first = next((event for event in events if isinstance(event, Attempt)), None)
    # A run that began in the middle of another one's data began in the middle of an epoch.
    per_epoch = first.tasks_per_epoch if first is not None and first.resumed_step == 0 else 0
    tasks = [
        task_id
        for event in events
        if isinstance(event, Admitted)
        for task_id in event.groups.values()
    ]
    problems = []
    for start in range(0, len(tasks) if per_epoch else 0, per_epoch or 1):
        for task_id, count in Counter(tasks[start : start + per_epoch]).items():
            if count > 1:
                epoch = start // per_epoch + 1
                problems.append(f"task {task_id} was admitted {count} times in epoch {epoch}")
    return problems


def _steps_that_began_differently(events: Sequence[Event]) -> list[str]:
    """Of modes that admit a step's tasks when the step begins; the others run ahead."""
    problems = []
    first_tasks: dict[int, tuple[str, ...]] = {}
    seen: set[int] = set()
    mode = ""
    for event in events:
        if isinstance(event, Attempt):
            mode, seen = event.mode, set()
        elif isinstance(event, Admitted) and mode == "sync" and event.step not in seen:
            seen.add(event.step)
            tasks = tuple(event.groups.values())
            if first_tasks.setdefault(event.step, tasks) != tasks:
                problems.append(
                    f"step {event.step} began with other tasks when it was taken again: "
                    f"{_first_difference(first_tasks[event.step], tasks)}"
                )
    return problems


def _groups_left_behind(events: Sequence[Event]) -> list[str]:
    """Of mode sync: in the others a group may be in flight for steps."""
    mode, problems = "", []
    open_groups: dict[str, str] = {}
    for event in events:
        if isinstance(event, Attempt):
            mode = event.mode
        elif isinstance(event, Admitted):
            open_groups.update(event.groups)
        for groups in _fates([event]).values():
            for group in groups:
                open_groups.pop(group, None)
        if isinstance(event, Trained) and mode == "sync":
            problems += [
                f"group {group} ({task_id}) was left behind by step {event.step}"
                for group, task_id in open_groups.items()
            ]
            open_groups.clear()
    return problems


def _first_difference(before: Sequence[str], after: Sequence[str]) -> str:
    pairs = zip((*before, "none"), (*after, "none"), strict=False)
    return next(f"{old}, then {new}" for old, new in pairs if old != new)
