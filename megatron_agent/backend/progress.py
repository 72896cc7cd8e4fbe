"""What a person watches: one line per step, ``metrics.jsonl``, and the wall clock of the run.

Hangs in verl's ``Tracking`` beside TensorBoard, so it gets every metric that any backend gets.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron_agent.atomic_file import atomic_file

logger = logging.getLogger("megatron_agent.progress")

PHASES = {
    "gen": "timing_s/gen",
    "old": "timing_s/old_log_prob",
    "ref": "timing_s/ref",
    "values": "timing_s/values",
    "adv": "timing_s/adv",
    "critic": "timing_s/update_critic",
    "actor": "timing_s/update_actor",
    "sync": "timing_s/update_weights",
    "save": "timing_s/save_checkpoint",
    "eval": "timing_s/testing",
}
VALIDATION_SUCCESS = "/success/mean@"


class ProgressBackend:
    """A logging backend for verl's ``Tracking`` (``log(data, step)``, ``finish()``).

    Args:
        path: ``metrics.jsonl``; lines of steps after ``resumed_step`` are dropped first, since
            those steps are about to be taken again.
        resumed_step: the step of the loaded checkpoint, 0 for a fresh run.
        num_steps: total steps of the run, for the display.
    """

    def __init__(self, path: Path, *, resumed_step: int, num_steps: int) -> None:
        self.path, self.num_steps = path, num_steps
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_later_lines(path, resumed_step)
        self._file = path.open("a", encoding="utf-8")

    @classmethod
    def from_config(cls, config: Any, *, resumed_step: int, num_steps: int) -> ProgressBackend:
        """Writes `metrics_file`."""
        return cls(metrics_file(config), resumed_step=resumed_step, num_steps=num_steps)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Append one line to the file and say one line to the person watching."""
        metrics = {key: plain_value(value) for key, value in data.items()}
        record = {"step": step, "time": time.time(), **metrics}
        self._file.write(json.dumps(record, sort_keys=True) + "\n")
        self._file.flush()
        logger.info("%s", progress_line(metrics, step=step, num_steps=self.num_steps))

    def finish(self, *_: Any, **__: Any) -> None:
        self._file.close()


def progress_line(metrics: Mapping[str, Any], *, step: int, num_steps: int) -> str:
    """One step in one line; parts without a value are left out.

    >>> progress_line({"episode/success/mean": 0.5, "train/rows": 80.0, "timing_s/gen": 2.04,
    ...                "timing_s/step": 3.0}, step=3, num_steps=60)
    'step 3/60 | success 0.50 | rows 80 | gen 2.0s | total 3.0s'
    """
    parts = [f"step {step}/{num_steps}"]
    for label, key, form in (
        ("return", "episode/return/mean", ".3f"),
        ("success", "episode/success/mean", ".2f"),
        ("length", "episode/length/mean", ".1f"),
        ("valid", "step/action_valid/mean", ".2f"),
        ("rows", "train/rows", ".0f"),
        ("updates", "train/optimizer_steps", ".0f"),
        ("failed", "episode/failed/mean", ".2f"),
    ):
        value = metrics.get(key)
        if value is not None and not (label == "failed" and value == 0):
            parts.append(f"{label} {value:{form}}")
    for key, value in metrics.items():
        if VALIDATION_SUCCESS in key and value is not None:
            parts.append(f"eval success {value:.3f}")
    phases = [f"{name} {metrics[key]:.1f}s" for name, key in PHASES.items() if key in metrics]
    if phases:
        parts.append(" ".join(phases))
    if "timing_s/step" in metrics:
        parts.append(f"total {metrics['timing_s/step']:.1f}s")
    return " | ".join(parts)


def plain_value(value: Any) -> Any:
    """JSON has neither numpy numbers nor NaN."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | bool | type(None)) else str(value)


def metrics_file(config: Any) -> Path:
    """``<run.dir>/metrics.jsonl``."""
    return Path(str(config.run.dir)) / "metrics.jsonl"


def written_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Lines of ``metrics.jsonl`` that hold a step, as text and read; a line that a kill cut off is
    passed over.
    """
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            yield line, record


def _drop_later_lines(path: Path, step: int) -> None:
    if not path.exists():
        return
    # A run without a checkpoint begins again, with the evaluation of step 0.
    lines = list(written_lines(path)) if step > 0 else []
    with atomic_file(path) as file:
        file.writelines(line + "\n" for line, record in lines if record["step"] <= step)
