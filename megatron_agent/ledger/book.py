"""The ledger's file: lines are appended, synced to disk, and never changed."""

from __future__ import annotations

import os
from pathlib import Path

from megatron_agent.ledger.events import Event, LedgerError, from_line, to_line

NAME = "ledger.jsonl"


class Ledger:
    """``ledger.jsonl`` of a run folder.

    Example:
        >>> import tempfile
        >>> from megatron_agent.ledger.events import Checkpoint
        >>> ledger = Ledger(Path(tempfile.mkdtemp()))
        >>> ledger.append(Checkpoint(step=1))
        >>> read_ledger(ledger.path)
        [Checkpoint(step=1)]
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / NAME

    def append(self, event: Event) -> None:
        """Write one line. It is on disk when this returns: a few lines a step cost nothing beside
        the step.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            line = to_line(event) + "\n"
            size = os.fstat(descriptor).st_size
            # A writer that was killed within a line: its half stays, on a line of its own.
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = "\n" + line
            data = line.encode()
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_ledger(path: Path) -> list[Event]:
    """Events in the order they happened. A line that a kill cut short is passed over where the
    writer after it began a new attempt, or where it is the last.

    Raises:
        LedgerError: there is no such file, or a line in it is no event.
    """
    if not path.is_file():
        raise LedgerError(
            f"{path} must be a file that a run has written, got none. Name the run's folder."
        )
    lines = path.read_text(encoding="utf-8").split("\n")
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            events.append(from_line(line, place=f"{path}, line {number}"))
        except LedgerError:
            following = next((text for text in lines[number:] if text), '"kind": "attempt"')
            if '"kind": "attempt"' not in following:
                raise
    return events
