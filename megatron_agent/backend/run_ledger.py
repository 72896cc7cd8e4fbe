"""What the trainer tells the prompt ledger, in the trainer's own terms."""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megatron_agent.backend.checkpoints import CheckpointKeeper
from megatron_agent.ledger import (
    MAX_OPEN_STEPS,
    Admitted,
    Attempt,
    Checkpoint,
    Event,
    Evicted,
    GroupOutcome,
    Ledger,
    LedgerError,
    LedgerReport,
    SetAside,
    Trained,
    check_ledger,
    effective_events,
    read_ledger,
)
from megatron_agent.ledger.rules import first_step

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]

REMEDY = (
    "Restore it from a copy; or start another run (run.name=...) from the checkpoint with "
    "trainer.resume_mode=resume_path, and what the ledger proved is lost."
)


class RunLedger:
    """The ledger of the run that this process trains.

    Args:
        run_dir: the run's folder.
        mode: ``trainer.v1.trainer_mode``.
    """

    def __init__(self, run_dir: Path, *, mode: str) -> None:
        self._ledger = Ledger(run_dir)
        self._mode = mode
        self._task_of: dict[str, str] = {}
        self._outcomes: dict[str, GroupOutcome] = {}

    def begin_attempt(self, *, resumed_step: int, tasks_per_epoch: int) -> None:
        """An attempt trains from here on."""
        before = _events(self._ledger.path)
        attempt = Attempt(
            attempt=1 + sum(isinstance(event, Attempt) for event in before),
            resumed_step=resumed_step,
            mode=self._mode,
            tasks_per_epoch=tasks_per_epoch,
        )
        # Groups that an asynchronous mode had in flight go on under their old ids.
        for event in effective_events([*before, attempt]):
            if isinstance(event, Admitted):
                self._task_of.update(event.groups)
        self._ledger.append(attempt)

    def admitted(self, step: int, groups: Iterable[str], tasks: Iterable[str]) -> None:
        """Groups that were handed to the rollout, in data order."""
        pairs = dict(zip(groups, tasks, strict=True))
        self._task_of.update(pairs)
        self._ledger.append(Admitted(step=step, groups=pairs))

    def note_sessions(self, sessions: Mapping[tuple[str, int], Row]) -> None:
        """A row of each session that was played, by group and session; what became of the groups
        is read off them.
        """
        rows_of: dict[str, list[Row]] = defaultdict(list)
        for (group, _), row in sessions.items():
            rows_of[group].append(row)
        for group, played in rows_of.items():
            self._outcomes[group] = GroupOutcome(
                group=group,
                task_id=self._task_of.get(group, ""),
                return_mean=float(np.mean([float(row["episode_return"]) for row in played])),
                num_success=sum(bool(row["success"]) for row in played),
                num_failed=sum(bool(row["failed"]) for row in played),
            )

    def trained(self, step: int, groups: Sequence[str], removed: Sequence[str] = ()) -> None:
        """The update of a step is done."""

        def outcomes(uids: Sequence[str]) -> tuple[GroupOutcome, ...]:
            return tuple(
                self._outcomes.pop(uid) if uid in self._outcomes else self._unknown(uid)
                for uid in uids
            )

        self._ledger.append(Trained(step=step, groups=outcomes(groups), removed=outcomes(removed)))

    def evicted(self, step: int, groups: Sequence[str]) -> None:
        """Groups that will not be trained on and are not in ``removed`` of any step."""
        self._ledger.append(Evicted(step=step, groups=tuple(sorted(groups))))

    def set_aside(self, step: int) -> None:
        """The tasks of a step go back to the data loader."""
        self._ledger.append(SetAside(step=step))

    def checkpoint(self, step: int) -> None:
        """Everything up to here is in the checkpoint of ``step``."""
        self._ledger.append(Checkpoint(step=step))

    def _unknown(self, uid: str) -> GroupOutcome:
        """Of a method that is verl's own, whose rows are not read here."""
        return GroupOutcome(
            group=uid,
            task_id=self._task_of.get(uid, ""),
            return_mean=None,
            num_success=0,
            num_failed=0,
        )


def check_run(run_dir: Path, *, max_open_steps: int = MAX_OPEN_STEPS) -> LedgerReport:
    """Check the ledger of a run's folder, also against the checkpoints that are in it: no complete
    one may be newer than what the ledger tells of.

    Raises:
        LedgerError: there is no ledger, or it cannot be read.
    """
    events = read_ledger(Ledger(run_dir).path)
    report = check_ledger(events, max_open_steps=max_open_steps)
    keeper = CheckpointKeeper(root=run_dir / "checkpoints")
    kept = effective_events(events)
    written = {event.step for event in kept if isinstance(event, Checkpoint)}
    newest = keeper.latest_step()
    if newest in {0, first_step(kept), *written}:
        return report
    problem = (
        f"checkpoint {keeper.folder(newest).name} is complete and the ledger does not tell of it; "
        f"the last step that it tells of is {report.last_step}"
    )
    return dataclasses.replace(report, problems=(*report.problems, problem))


def check_before_resume(run_dir: Path, resumed_step: int, *, must_tell: bool = False) -> None:
    """Refuse to go on from a history that is broken, before anything heavy starts.

    Args:
        run_dir: the run's folder.
        resumed_step: step of the checkpoint that was chosen; 0 for none.
        must_tell: the checkpoint is one of an earlier attempt of this run, whose ledger tells of
            it. False for one of another run, or a folder that no attempt was in: without a ledger
            there is nothing to check then.

    Raises:
        LedgerError: with what is wrong.
    """
    path = Ledger(run_dir).path
    events = _events(path)
    if not events:
        if must_tell:
            found = "an empty one" if path.is_file() else "none"
            raise LedgerError(
                f"{path} must tell how the run came to step {resumed_step}, got {found}. {REMEDY}"
            )
        return
    start = Attempt(attempt=0, resumed_step=resumed_step, mode="", tasks_per_epoch=0)
    history = [*events, start]
    # Whether a group is in flight for too long is a guess, and no reason to end a run.
    problems = check_ledger(history, max_open_steps=None).problems
    if problems:
        raise LedgerError(
            f"{path} must tell one history of the run, got: {'; '.join(problems)}. {REMEDY}"
        )
    for problem in check_ledger(history).problems:
        logger.warning("%s: %s.", path, problem)


def _events(path: Path) -> list[Event]:
    return read_ledger(path) if path.is_file() else []
