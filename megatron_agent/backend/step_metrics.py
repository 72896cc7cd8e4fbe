"""What a run still owes for a step whose checkpoint is whole: its metrics and its evaluation.

verl saves a step, then evaluates, and only then writes the step's metrics. An evaluation may take
longer than many steps, so the checkpoint must count before it: a run that ends in between goes on
from there. For this the checkpoint holds the step's metrics, and the resumed run writes them and
evaluates first, when ``metrics.jsonl`` has no line of that step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_agent.backend.progress import plain_value

FILE = "step_metrics.json"


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


def owed_metrics(folder: Path, written: Path) -> dict[str, float] | None:
    """The metrics of a checkpoint's step that its run has not written.

    Args:
        folder: the checkpoint ``global_step_<k>`` that a run goes on from.
        written: the run's ``metrics.jsonl``.

    Returns:
        None when a line of step ``k`` is there; else what the checkpoint holds, which is nothing
        in one that was written without it.
    """
    step = int(folder.name.rpartition("_")[2])
    if step in steps_written(written):
        return None
    kept = folder / FILE
    return json.loads(kept.read_bytes()) if kept.is_file() else {}


def steps_written(path: Path) -> set[int]:
    """Steps that have a whole line in ``metrics.jsonl``."""
    steps = set()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            steps.add(int(json.loads(line)["step"]))
        except (ValueError, KeyError, TypeError):
            continue  # a line cut off by a kill
    return steps
