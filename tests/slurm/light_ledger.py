"""The light driver's prompt ledger: what a trainer in mode ``sync`` would tell it.

Neither Ray nor verl is imported.
"""

from __future__ import annotations

from pathlib import Path

from megatron_agent.ledger import (
    Admitted,
    Attempt,
    Checkpoint,
    GroupOutcome,
    Ledger,
    Trained,
    read_ledger,
)

GROUPS_PER_STEP = 2
TASKS_PER_EPOCH = 10
"""A multiple, as the data loader drops what does not fill a step."""


class LightLedger:
    """Tells the real ledger of the steps of one attempt. A step's tasks follow from its number, so
    what a checked ledger proves here is the job's way through an interruption: that each attempt
    went on where the one before was kept, and that none wrote beside another.

    Args:
        run_dir: the run's folder, which is there.
        resumed_step: the step that the attempt goes on from; 0 for none.
    """

    def __init__(self, run_dir: Path, resumed_step: int) -> None:
        self._ledger = Ledger(run_dir)
        before = read_ledger(self._ledger.path) if self._ledger.path.exists() else []
        self._attempt = 1 + sum(isinstance(event, Attempt) for event in before)
        self._ledger.append(
            Attempt(
                attempt=self._attempt,
                resumed_step=resumed_step,
                mode="sync",
                tasks_per_epoch=TASKS_PER_EPOCH,
            )
        )

    def begin(self, step: int) -> None:
        """The tasks of a step are handed out."""
        self._ledger.append(Admitted(step=step, groups=self._groups(step)))

    def end(self, step: int) -> None:
        """A step is done. Before the driver writes down its number, which is its checkpoint: a kill
        in between takes the step back, and the other way round would leave a gap.
        """
        outcomes = tuple(
            GroupOutcome(group=group, task_id=task, return_mean=0.0, num_success=0, num_failed=0)
            for group, task in self._groups(step).items()
        )
        self._ledger.append(Trained(step=step, groups=outcomes))
        self._ledger.append(Checkpoint(step=step))

    def _groups(self, step: int) -> dict[str, str]:
        first = (step - 1) * GROUPS_PER_STEP
        return {
            f"attempt-{self._attempt}-step-{step}-{number}": f"task-{task % TASKS_PER_EPOCH}"
            for number, task in enumerate(range(first, first + GROUPS_PER_STEP))
        }
