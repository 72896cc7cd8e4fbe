"""Which anchors can be compared: the types that `envs.base.Observation.anchor` allows.

A run digests every anchor (`megatron_agent.anchors`) and ends at the first that it cannot digest.
Environments import nothing of that package, so the rule stands here once more; a unit test holds
the two together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_PLAIN_KINDS = "biufSU"
"""numpy kinds whose memory is their value."""


def unfit_part(anchor: Any, place: str = "anchor") -> str:
    """Where and what in ``anchor`` cannot be compared; empty when all can.

    Example:
        >>> unfit_part({"at": (1, 2)})
        ''
        >>> unfit_part({"seen": frozenset()})
        "anchor['seen'] is a frozenset"
    """
    if isinstance(anchor, np.generic) and anchor.dtype.kind in _PLAIN_KINDS:
        anchor = anchor.item()
    if anchor is None:  # inside a container it may stand for nothing
        return "anchor is None" if place == "anchor" else ""
    if isinstance(anchor, str | bytes | bytearray | int | float):
        return ""
    if isinstance(anchor, np.ndarray) and anchor.dtype.kind == "O":
        anchor = anchor.ravel().tolist()
    if isinstance(anchor, np.ndarray):
        is_padded = anchor.dtype.kind == "f" and anchor.itemsize > 8
        is_plain = anchor.dtype.kind in _PLAIN_KINDS and not is_padded
        return "" if is_plain else f"{place} is an array of {anchor.dtype}"
    if isinstance(anchor, tuple | list):
        parts = (unfit_part(item, f"{place}[{at}]") for at, item in enumerate(anchor))
    elif isinstance(anchor, dict):
        parts = (
            unfit_part(key, f"{place} key {key!r}") or unfit_part(item, f"{place}[{key!r}]")
            for key, item in anchor.items()
        )
    else:
        return f"{place} is a {type(anchor).__name__}"
    return next(filter(None, parts), "")
