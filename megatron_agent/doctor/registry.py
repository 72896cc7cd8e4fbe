"""The checks by name. A check is a function that yields what it finds about one run.

Adding one is a function in a module of `megatron_agent.doctor.checks`::

    @check("storage", "the disk has room for the checkpoints")
    def check_storage(case: RunCase) -> Iterator[Finding]:
        if free_bytes < needed_bytes:
            yield error("run.dir", "must ...", "Use another disk.")
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from megatron_agent.config.findings import nearest_key
from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import Finding
from megatron_agent.errors import ConfigError

CheckFunction = Callable[[RunCase], Iterator[Finding]]

MODULES: tuple[str, ...] = (
    "installation",
    "configuration",
    "task_files",
    "weights",
    "tokenizer",
    "chat_template",
    "environment",
    "storage",
    "ports",
    "gpus",
    "cluster",
    "registration",
)
"""Files of `megatron_agent.doctor.checks`, in the order in which checks run: what explains most
comes first, what takes longest last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check."""

    name: str
    about: str
    """What holds when it finds nothing."""
    is_deep: bool
    """Starts processes of the stack (seconds to a minute); only run when asked for."""
    find: CheckFunction


_checks: dict[str, Check] = {}


def check(name: str, about: str, *, deep: bool = False) -> Callable[[CheckFunction], CheckFunction]:
    """Register the function below under ``name``."""

    def register(function: CheckFunction) -> CheckFunction:
        assert name not in _checks, f"two checks are called {name!r}"
        _checks[name] = Check(name=name, about=about, is_deep=deep, find=function)
        return function

    return register


def all_checks() -> tuple[Check, ...]:
    """Every check, in the order in which they run."""
    for module in MODULES:
        importlib.import_module(f"megatron_agent.doctor.checks.{module}")
    return tuple(_checks.values())


def check_names(names: Collection[str]) -> None:
    """Refuse names that no check has.

    Raises:
        ConfigError: with the nearest name.
    """
    known = [check.name for check in all_checks()]
    for name in names:
        if name not in known:
            near = nearest_key(name, known)
            hint = f"Did you mean {near!r}? " if near else ""
            remedy = f"{hint}'megatron-agent doctor --list' names them."
            raise ConfigError("--skip", "must name a check", name, remedy)
