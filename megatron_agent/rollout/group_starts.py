"""All sessions of a group start in the same state: checked, not assumed."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from megatron_agent.anchors import anchor_digest
from megatron_agent.errors import GroupStartError

if TYPE_CHECKING:
    from megatron_agent.tasks import EnvTask

MAX_GROUPS = 10_000
"""Groups remembered. An old group is forgotten only long after its last session has started."""


class GroupStarts:
    """The state in which each group's first session started."""

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        self._max_groups = max_groups
        self._first: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def check(self, group_id: str, session_id: int, task: EnvTask, anchor: Any) -> None:
        """Note the start of a group's first session; compare those of the others with it.

        Args:
            anchor: what the environment's ``reset`` gave as anchor.

        Raises:
            GroupStartError: the start differs; the message names both sessions and their seeds.
            AnchorError: an anchor that cannot be digested.
        """
        who = f"session {session_id} (env {task.env!r}, seed {task.seed})"
        digest = anchor_digest(anchor)
        first_digest, first_who = self._first.setdefault(group_id, (digest, who))
        if len(self._first) > self._max_groups:
            self._first.popitem(last=False)
        if digest != first_digest:
            raise GroupStartError(
                f"group {group_id!r}: {first_who} and {who} must start in the same state, but "
                f"their anchors differ ({first_digest[:8]} and {digest[:8]}). Give the group one "
                f"task, and make the environment's reset depend on the seed and options alone."
            )
