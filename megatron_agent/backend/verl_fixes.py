"""What verl 0.9.1 gets wrong on a path that we use, put right from outside.

Each entry has a test in ``tests/contract/test_verl_fixes.py`` that fails when verl no longer needs
it; then it goes.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from types import ModuleType
from typing import Any


class _LoggerWithoutFlush(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs.pop("flush", None)
        return msg, kwargs


def repair_separate_async(module: ModuleType) -> None:
    """``trainer_separate_async`` passes ``flush=True``, which belongs to ``print``, to its logger.

    That line says that ``actor_rollout_ref.hybrid_engine`` is false. The logger's level is INFO
    unless ``VERL_LOGGING_LEVEL`` says otherwise, so such a run ends with a TypeError when its
    servers are up.
    """
    if not isinstance(module.logger, _LoggerWithoutFlush):
        module.logger = _LoggerWithoutFlush(module.logger, {})  # type: ignore[attr-defined]
