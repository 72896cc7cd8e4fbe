"""How a model is split over ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from megatron_agent.errors import CheckpointError

_PART = re.compile(r"(TP|PP|EP)([1-9][0-9]*)")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of tensor, pipeline and expert parallelism. Data parallelism copies; it splits nothing.

    Example:
        >>> Layout.parse("TP2xPP2")
        Layout(tp=2, pp=2, ep=1)
        >>> str(Layout(ep=2)), Layout(tp=2, ep=2).num_ranks
        ('EP2', 4)
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read ``TP2xPP2``; the parts may come in any order and case.

        Raises:
            CheckpointError: another text, or a part named twice.
        """
        parts = [_PART.fullmatch(part) for part in text.upper().split("X")]
        sizes = {match[1].lower(): int(match[2]) for match in parts if match}
        if len(sizes) != len(parts):
            raise CheckpointError(
                "--layout",
                "must name sizes of TP, PP and EP, each once",
                text,
                "Write e.g. TP2xPP2, or TP1 for a single rank.",
            )
        return cls(**sizes)

    @property
    def num_ranks(self) -> int:
        """Ranks that hold different weights, with expert ranks inside the data-parallel ones."""
        return self.tp * self.pp * self.ep

    def __str__(self) -> str:
        parts = [f"{name}{size}" for name, size in self._sizes() if size > 1]
        return "x".join(parts) or "TP1"

    def _sizes(self) -> tuple[tuple[str, int], ...]:
        return (("TP", self.tp), ("PP", self.pp), ("EP", self.ep))


UNSPLIT = Layout()
"""One rank that holds everything."""
