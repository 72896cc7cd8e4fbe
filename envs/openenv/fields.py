"""Reading an observation whose fields only its server knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.printable import printable

_NOTHING = "(nothing)"
_NOT_SHOWN = "metadata"


def field_at(observation: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path.

    Raises:
        KeyError: there is none; names the fields that are there.

    Example:
        >>> field_at({"metadata": {"won": True}}, "metadata.won")
        True
    """
    value: Any = observation
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            there = ", ".join(map(str, value)) if isinstance(value, Mapping) else repr(value)[:80]
            raise KeyError(f"an observation has no field {path!r}; there is: {there or 'nothing'}")
        value = value[name]
    return value


def as_text(value: Any) -> str:
    """A field in words: text as it is, the rest as JSON. Never empty, and printable."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # A lone half of a surrogate pair cannot be printed.
    text = printable(text.encode(errors="replace").decode())
    return text if text.strip() else _NOTHING


def describe(observation: Mapping[str, Any]) -> str:
    r"""All fields but the metadata: the text alone where there is one field, else a line for each.

    Example:
        >>> describe({"room": "hall", "doors": 2, "metadata": {}})
        'room: hall\ndoors: 2'
    """
    shown = {name: value for name, value in observation.items() if name != _NOT_SHOWN}
    if len(shown) == 1:
        return as_text(*shown.values())
    return "\n".join(f"{name}: {as_text(value)}" for name, value in shown.items()) or _NOTHING
