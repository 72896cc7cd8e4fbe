"""Libraries that use the global random state, kept apart from everything else.

Some environments seed or draw from ``random`` and ``numpy.random``. Left alone, they would couple
the sessions of one worker to each other, and reseed whatever else draws there. Each session that
needs it gets a global state of its own, swapped in for the time of a call.
"""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any

import numpy as np

_NUMPY_SEEDS = 2**32


class PrivateRandomState:
    """A context in which Python's and numpy's global generators belong to one session.

    Swapping costs about 30 microseconds. Not for threads that share an interpreter: the global
    state is one for all of them.

    Example:
        >>> private = PrivateRandomState(seed=7)
        >>> with private:
        ...     first = random.random()
        >>> random.seed(0)
        >>> with private:
        ...     second = random.random()
        >>> with PrivateRandomState(seed=7):
        ...     [random.random() == first, random.random() == second]
        [True, True]
    """

    def __init__(self, seed: int) -> None:
        # Seeded apart and not through the global functions: nothing global changes here.
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % _NUMPY_SEEDS).get_state()
        self._outside: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        if self._outside is not None:
            raise RuntimeError("PrivateRandomState is in use; a session makes one call at a time.")
        self._outside = random.getstate(), np.random.get_state()
        random.setstate(self._python)
        np.random.set_state(self._numpy)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._outside is not None
        self._python, self._numpy = random.getstate(), np.random.get_state()
        python, numpy_state = self._outside
        random.setstate(python)
        np.random.set_state(numpy_state)
        self._outside = None
