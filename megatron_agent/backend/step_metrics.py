"""What a run still owes for a step whose checkpoint is whole: its metrics and its evaluation.

verl saves a step, then evaluates, and only then writes the step's metrics. An evaluation may take
longer than many steps, so the checkpoint must count before it: a run that ends in between goes on
from there. For this the checkpoint holds the step's metrics. When ``metrics.jsonl`` has no line of
that step, the resumed run evaluates, if it is due, and then writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_agent.backend.checkpoints import CheckpointKeeper
from megatron_agent.backend.progress import plain_value, written_lines

FILE = "step_metrics.json"
EVALUATION = "val-"
"""How verl's names of an evaluation's metrics begin."""


def keep_metrics(
    folder: Path, metrics: Mapping[str, Any], timing_s: Mapping[str, float] | None = None
) -> None:
    """Put a step's metrics into its checkpoint.

    Args:
        folder: ``global_step_<k>``, not yet marked complete.
        metrics: those known when the step is saved; what is not a finite number is left out.
        timing_s: seconds of each phase so far.
    """
    timing = {f"timing_s/{phase}": seconds for phase, seconds in (timing_s or {}).items()}
    plain = {key: plain_value(value) for key, value in {**metrics, **timing}.items()}
    numbers = {key: value for key, value in plain.items() if isinstance(value, int | float)}
    (folder / FILE).write_text(json.dumps(numbers, sort_keys=True, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class Owed:
    """What a run that goes on from a checkpoint still has to write."""

    metrics: dict[str, float] | None = None
    """Of the step's training; None when they are written, or the checkpoint has none."""
    evaluation: bool = False
    """Metrics are owed, and no evaluation of that step is written; whether one is due is another
    question.
    """

    @classmethod
    def after(cls, folder: Path, written: Path) -> Owed:
        """Compare a checkpoint with what its run has written.

        Args:
            folder: the checkpoint ``global_step_<k>`` that the run goes on from.
            written: the run's ``metrics.jsonl``.
        """
        step, kept = CheckpointKeeper.step_of(folder), folder / FILE
        records = [record for _, record in written_lines(written) if record["step"] == step]
        names = set().union(*records) - {"step", "time"}
        is_evaluated = any(name.startswith(EVALUATION) for name in names)
        if not kept.is_file() or any(not name.startswith(EVALUATION) for name in names):
            return cls()
        return cls(metrics=json.loads(kept.read_bytes()), evaluation=not is_evaluated)
