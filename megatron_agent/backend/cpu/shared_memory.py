"""Sharing tensors between processes of a machine that is busy.

Weights go from trainer to server in shared memory, by torch's ``file_system`` strategy: a small
process beside each of ours, ``torch_shm_manager``, is told of every file before it is used. Torch
gives it one second to answer, a constant of libshm. Where all cores are taken it may not get one
in that time, and a run would end at a weight update with "Shared memory manager connection has
timed out".

Replaces ``torch.UntypedStorage._share_filename_cpu_`` (the sender's side) and
``_new_shared_filename_cpu`` (the receiver's) by themselves, asked again. That is safe: all answers
of the manager are the same word, so it does not matter which of them a late one was, and files that
it was told of in vain are forgotten with the process.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger(__name__)

TIMED_OUT = "Shared memory manager connection has timed out"
NUM_TRIES = 30
"""At a second each."""

_installed = False


def install() -> None:
    """Let this process wait for its manager. Safe to call again."""
    global _installed
    if _installed:
        return
    storage: Any = torch.UntypedStorage
    storage._share_filename_cpu_ = asking_again(storage._share_filename_cpu_)
    # This one makes a storage, and has none yet.
    storage._new_shared_filename_cpu = staticmethod(asking_again(storage._new_shared_filename_cpu))
    _installed = True


def asking_again(method: Callable[..., Any]) -> Callable[..., Any]:
    """``method``, called again for as long as it raises that the manager did not answer.

    Raises:
        RuntimeError: torch's own, after `NUM_TRIES`, or another one at once.
    """

    @functools.wraps(method)
    def patient(*args: Any, **kwargs: Any) -> Any:
        for _ in range(NUM_TRIES - 1):
            try:
                return method(*args, **kwargs)
            except RuntimeError as error:
                if TIMED_OUT not in str(error):
                    raise
            logger.warning("The machine is busy: torch_shm_manager has not answered yet.")
        return method(*args, **kwargs)

    return patient
