"""The way in: verl imports this module in every process.

Two doors lead here. ``VERL_USE_EXTERNAL_MODULES=megatron_agent.backend.plugin``, which our launcher
sets, fails loudly. The ``verl.plugins`` entry point, for people who start verl themselves, swallows
errors at debug level; :mod:`megatron_agent.backend.preflight` finds out.

verl imports us while it is being imported itself, so nothing here may import verl's inner parts.
They are hooked instead: our trainers register when verl's trainers are first imported, our agent
loop when verl's is.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from types import ModuleType

from megatron_agent.backend import cpu
from megatron_agent.backend.cpu.lazy_import import when_imported
from megatron_agent.backend.cpu.prefork.protocol import PYTHON_VARIABLE

_registered = False


def register() -> None:
    """Register everything once per process; cheap."""
    global _registered
    if _registered:
        return
    cpu.register()
    when_imported("verl.trainer.ppo.v1", _register_trainers)
    when_imported("verl.experimental.agent_loop", _register_agent_loop)
    _fork_spawned_processes()
    _registered = True


def _register_trainers(_: ModuleType) -> None:
    importlib.import_module("megatron_agent.backend.trainer")


def _register_agent_loop(_: ModuleType) -> None:
    importlib.import_module("megatron_agent.backend.agent_loop")


def _fork_spawned_processes() -> None:
    """In a worker that was forked from the prefork server, let multiprocessing's children be,
    too.
    """
    stand_in = os.environ.get(PYTHON_VARIABLE)
    if stand_in and os.path.exists(stand_in):
        multiprocessing.set_executable(stand_in)


register()
