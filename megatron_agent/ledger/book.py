"""The ledger's file: lines are appended, synced to disk, and never changed."""

from __future__ import annotations

import os
from pathlib import Path

from megatron_agent.ledger.events import Attempt, Event, LedgerError
from megatron_agent.ledger.lines import from_line, is_cut_short, to_line

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
    writer after it began a new attempt, or where it is the last and has no end.

    Raises:
        LedgerError: there is no such file, or a line in it is no event.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LedgerError(
            f"{path} must be a file that a run has written, got none ({error.strerror}). Name the "
            "run's folder."
        ) from error
    *whole, rest = content.split(b"\n")
    events: list[Event] = []
    cut_short: LedgerError | None = None
    for number, line in enumerate([*whole, rest], start=1):
        if not line:
            continue
        try:
            event = from_line(line, place=f"{path}, line {number}")
        except LedgerError as error:
            if not is_cut_short(line):
                raise
            cut_short = cut_short or error
            continue
        if cut_short is not None and not isinstance(event, Attempt):
            raise cut_short
        cut_short = None
        events.append(event)
    if cut_short is not None and not rest:
        raise cut_short
    return events
