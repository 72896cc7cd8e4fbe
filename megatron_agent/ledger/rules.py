"""The rules that `check` holds a ledger to; each gives what breaks it, in words.

Some look at all events, the others at those of the effective history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from megatron_agent.ledger.events import Admitted, Attempt, Checkpoint, Event, Evicted, Trained


def first_step(events: Sequence[Event]) -> int:
    """The step that the run began from: 0, or that of another run's checkpoint."""
    return next((event.resumed_step for event in events if isinstance(event, Attempt)), 0)


def begins_without_an_attempt(events: Sequence[Event]) -> list[str]:
    """Also of an empty ledger: it proves nothing."""
    if events and isinstance(events[0], Attempt):
        return []
    found = f"begins with {events[0].kind!r}" if events else "is empty"
    return [f"the ledger {found}, where an attempt should be: what came before it is lost"]


def fates_of(events: Sequence[Event]) -> dict[str, list[str]]:
    """Groups by how they ended."""
    fates: dict[str, list[str]] = {"trained on": [], "removed": [], "evicted": []}
    for event in events:
        if isinstance(event, Trained):
            fates["trained on"] += [outcome.group for outcome in event.groups]
            fates["removed"] += [outcome.group for outcome in event.removed]
        elif isinstance(event, Evicted):
            fates["evicted"] += event.groups
    return fates


def unknown_checkpoints(events: Sequence[Event]) -> list[str]:
    """Of all events: attempts that go on from nothing."""
    written: set[int] = {first_step(events)}
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


def steps_out_of_order(events: Sequence[Event]) -> list[str]:
    """Steps that are missing, or that were trained twice."""
    expected = first_step(events) + 1
    problems = []
    for event in events:
        if isinstance(event, Trained):
            if event.step != expected:
                problems.append(f"step {event.step} was trained where step {expected} was due")
            expected = event.step + 1
    return problems


def groups_without_one_fate(events: Sequence[Event]) -> list[str]:
    """Groups that were never admitted, or came to more than one end, or to that of another task."""
    task_of: dict[str, str] = {}
    problems = []
    for event in events:
        for group, task_id in event.groups.items() if isinstance(event, Admitted) else ():
            if group in task_of:
                problems.append(f"group {group} ({task_id}) was admitted twice")
            task_of[group] = task_id
    counts: Counter[str] = Counter()
    for fate, groups in fates_of(events).items():
        counts.update(groups)
        if not _took_groups_over(events):
            for group in sorted(set(groups) - task_of.keys()):
                problems.append(f"group {group} was {fate} and never admitted")
    for group, count in counts.items():
        if count > 1:
            problems.append(f"group {group} ({task_of.get(group)}) came to an end {count} times")
    return [*problems, *_tasks_under_another_name(events, task_of)]


def _took_groups_over(events: Sequence[Event]) -> bool:
    """Whether the run began from another one's checkpoint, in a mode whose checkpoints hold groups
    in flight: the other run's ledger says when those were admitted.
    """
    first = next((event for event in events if isinstance(event, Attempt)), None)
    return first is not None and first.resumed_step > 0 and first.mode != "sync"


def _tasks_under_another_name(events: Sequence[Event], task_of: Mapping[str, str]) -> list[str]:
    outcomes = [
        outcome
        for event in events
        if isinstance(event, Trained)
        for outcome in (*event.groups, *event.removed)
    ]
    return [
        f"group {outcome.group} ended as task {outcome.task_id!r} and was admitted as "
        f"{task_of[outcome.group]!r}"
        for outcome in outcomes
        if task_of.get(outcome.group, outcome.task_id) != outcome.task_id
    ]


def tasks_twice_in_an_epoch(events: Sequence[Event]) -> list[str]:
    """Where a task comes twice, another one is left out."""
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


def steps_that_began_differently(events: Sequence[Event]) -> list[str]:
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


def groups_left_behind(events: Sequence[Event]) -> list[str]:
    """Of mode sync: in the others a group may be in flight for steps."""
    mode, problems = "", []
    open_groups: dict[str, str] = {}
    for event in events:
        if isinstance(event, Attempt):
            mode = event.mode
        elif isinstance(event, Admitted):
            open_groups.update(event.groups)
        for groups in fates_of([event]).values():
            for group in groups:
                open_groups.pop(group, None)
        if isinstance(event, Trained) and mode == "sync":
            problems += [
                f"group {group} ({task_id}) was left behind by step {event.step}"
                for group, task_id in open_groups.items()
            ]
            open_groups.clear()
    return problems


def admitted_out_of_step(events: Sequence[Event]) -> list[str]:
    """Of mode sync, which admits tasks for the step under way alone."""
    mode, due, problems = "", first_step(events) + 1, []
    for event in events:
        if isinstance(event, Attempt):
            mode = event.mode
        elif isinstance(event, Trained):
            due = event.step + 1
        elif isinstance(event, Admitted) and mode == "sync" and event.step != due:
            problems.append(
                f"{len(event.groups)} groups were admitted in step {event.step} where step {due} "
                "was due"
            )
    return problems


def open_too_long(events: Sequence[Event], max_open_steps: int) -> list[str]:
    """Groups that have no end so many steps after the one that admitted them."""
    trained_steps = [event.step for event in events if isinstance(event, Trained)]
    last_step = max(trained_steps, default=first_step(events))
    ended = {group for groups in fates_of(events).values() for group in groups}
    return [
        f"group {group} ({task_id}) of step {event.step} is open after step {last_step}: a group "
        f"may be open for {max_open_steps} steps"
        for event in events
        if isinstance(event, Admitted) and last_step - event.step > max_open_steps
        for group, task_id in event.groups.items()
        if group not in ended
    ]


def _first_difference(before: Sequence[str], after: Sequence[str]) -> str:
    pairs = zip((*before, "none"), (*after, "none"), strict=False)
    return next(f"{old}, then {new}" for old, new in pairs if old != new)
