"""Reading pickles without running them.

torch's distributed checkpoints describe themselves in pickles. Here nothing that a pickle names is
ever called: a few known names become inert records that remember what they were given, every other
name is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megatron_agent.errors import CheckpointError


class Record:
    """What a pickle says about one object: its arguments and its state."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __getitem__(self, field: str) -> Any:
        return self.state[field]


Names = Mapping[str, Callable[[str], Any] | Mapping[str, Any]]
"""Module -> the names that may be taken from it, or a function from a name to a value or None."""


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, names: Names) -> None:
        super().__init__(io.BytesIO(data))
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        known = self._names.get(module, {})
        value = known(name) if callable(known) else known.get(name)
        if value is None:
            raise _RefusedError(f"{module}.{name}")
        return value

    def persistent_load(self, pid: Any) -> Any:
        return Record(*pid)


class _RefusedError(Exception):
    """A name that the pickle must not mention."""


def read_inert(data: bytes, names: Names, path: Path) -> Any:
    """Return what a pickle describes, made of builtin containers and the values of ``names``.

    Raises:
        CheckpointError: a name outside of ``names``, or no whole pickle.
    """
    try:
        return _InertUnpickler(data, names).load()
    except _RefusedError as refused:
        raise CheckpointError(
            str(path),
            "must be a pickle of torch's checkpoint records alone",
            str(refused),
            "Loading it could run code. Nothing of it was run; do not load it elsewhere either.",
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError(
            str(path),
            "must be a whole pickle of torch's checkpoint records",
            f"{type(error).__name__}: {error}",
            "The file is truncated, damaged or still being written: copy it again.",
        ) from None
