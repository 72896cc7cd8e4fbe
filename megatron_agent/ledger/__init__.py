"""Prompt ledger: which task was admitted, trained on and checkpointed when, over all attempts."""

from megatron_agent.ledger.book import Ledger, read_ledger
from megatron_agent.ledger.check import (
    MAX_OPEN_STEPS,
    LedgerReport,
    check_ledger,
    effective_events,
)
from megatron_agent.ledger.events import (
    Admitted,
    Attempt,
    Checkpoint,
    Event,
    Evicted,
    GroupOutcome,
    LedgerError,
    SetAside,
    Trained,
)

__all__ = [
    "MAX_OPEN_STEPS",
    "Admitted",
    "Attempt",
    "Checkpoint",
    "Event",
    "Evicted",
    "GroupOutcome",
    "Ledger",
    "LedgerError",
    "LedgerReport",
    "SetAside",
    "Trained",
    "check_ledger",
    "effective_events",
    "read_ledger",
]
