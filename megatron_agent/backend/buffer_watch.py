"""Ears in verl's replay buffers: when they wait for episodes, and what they throw away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def watched(
    replay_buffer: Any,
    *,
    on_wait: Callable[[str], None],
    on_evict: Callable[[set[str]], None] | None,
) -> Any:
    """The same buffer, telling what it does.

    Args:
        replay_buffer: verl's, or ours over it.
        on_wait: called with the partition before each pause between two looks; may raise.
        on_evict: called with the groups of the training partition that are dropped.
    """
    wait, clear = replay_buffer._wait_for_next_poll, replay_buffer._clear_groups

    def telling_wait(partition_id: str, last_debug_time: float) -> float:
        on_wait(partition_id)
        return float(wait(partition_id, last_debug_time))

    def telling_clear(partition_id: str, uids: set[str]) -> None:
        if partition_id == "train" and uids and on_evict is not None:
            on_evict(set(uids))
        clear(partition_id, uids)

    replay_buffer._wait_for_next_poll = telling_wait
    replay_buffer._clear_groups = telling_clear
    return replay_buffer
