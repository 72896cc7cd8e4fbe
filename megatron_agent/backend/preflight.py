"""Is everything really registered? Asked in the driver and in a Ray worker before a run starts.

verl swallows errors of plugins loaded by entry point, and an unregistered engine or trainer shows
only deep inside a start-up of minutes. All problems are reported at once.
"""

from __future__ import annotations

import importlib
from typing import Any

from megatron_agent.backend.compat import VERL_VERSION
from megatron_agent.errors import HookError
from megatron_agent.types import AGENT_NAME

PLUGIN = "megatron_agent.backend.plugin"


def registration_problems(device_name: str, trainer_name: str) -> list[str]:
    """What is missing in this process; empty when all is well. Imports verl.

    Args:
        device_name: verl's name of the device, ``cpu`` or ``cuda``.
        trainer_name: registered trainer the run asks for, e.g. ``agent_sync``.
    """
    import verl

    importlib.import_module(PLUGIN)
    problems = []
    if verl.__version__ != VERL_VERSION:
        problems.append(
            f"verl {verl.__version__} is installed; this package is tested with {VERL_VERSION}."
        )
    from verl.plugin.platform import get_platform

    if get_platform().device_name != device_name:
        problems.append(
            f"verl chose the platform {get_platform().device_name!r}, the run is for "
            f"{device_name!r}: "
            f"set VERL_PLATFORM={device_name}."
        )
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    importlib.import_module("verl.trainer.ppo.v1")
    if trainer_name not in TRAINER_REGISTRY:
        problems.append(
            f"no trainer {trainer_name!r} is registered (there are: {sorted(TRAINER_REGISTRY)})."
        )
    problems += _missing_parts(device_name)
    return problems


def _missing_parts(device_name: str) -> list[str]:
    """Our agent loop, and on a CPU the engines; verl's trainers have imported both registries."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.workers.engine.base import EngineRegistry

    problems = []
    if AGENT_NAME not in _agent_loop_registry:
        problems.append(f"no agent loop {AGENT_NAME!r} is registered.")
    for model_type in ("language_model", "value_model") if device_name == "cpu" else ():
        backends = EngineRegistry._engines.get(model_type, {})
        if device_name not in backends.get("megatron", {}):
            problems.append(f"no Megatron engine for {model_type!r} is registered on a CPU.")
    return problems


def check_registration(problems: list[str], where: str) -> None:
    """Raise one error with everything that is wrong in a process.

    Raises:
        HookError: if there are problems.
    """
    if problems:
        listed = "\n  ".join(problems)
        raise HookError(
            f"The plugin is not whole in the {where}:\n  {listed}\n"
            f"Set VERL_USE_EXTERNAL_MODULES={PLUGIN} and install the locked versions (make setup)."
        )


def ask_worker(device_name: str, trainer_name: str) -> Any:
    """Start :func:`registration_problems` in a Ray worker; returns the reference to its answer."""
    import ray

    return ray.remote(num_cpus=0)(registration_problems).remote(device_name, trainer_name)
