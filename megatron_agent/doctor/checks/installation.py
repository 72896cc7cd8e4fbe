"""Python and the packages: those of the lock file, and the plugin where verl looks for it."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import Finding, error, note, warning
from megatron_agent.doctor.registry import check
from megatron_agent.provenance import DISTRIBUTIONS

REQUIREMENTS = Path(__file__).resolve().parents[3] / "requirements"
NUM_NAMED = 6
"""Packages that a summary names."""

_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)


@check("installation", "Python and packages are those of the lock file")
def check_installation(case: RunCase) -> Iterator[Finding]:
    """Errors for the packages that decide what a run does, one warning for all others."""
    if sys.version_info[:2] != (3, 12):
        version = ".".join(map(str, sys.version_info[:3]))
        problem = f"must be 3.12 (megatron-core needs it, verl ends there), got {version}"
        yield error("python", problem, "Run 'make setup' and use .venv/bin/megatron-agent.")
    profile = "gpu" if case.device == "cuda" else "cpu"
    lock = REQUIREMENTS / f"{profile}.lock"
    setup = f"Run 'make setup PROFILE={profile}'."
    if not lock.is_file():
        yield note(str(lock), "is not there, so nothing to compare with", "Use a checkout.")
        return
    differing = differences(locked_versions(lock.read_text(encoding="utf-8")))
    for name in sorted(differing.keys() & set(DISTRIBUTIONS)):
        yield error(name, f"must be as in {lock.name}: {differing.pop(name)}", setup)
    if differing:
        named = ", ".join(
            f"{name} ({what})" for name, what in sorted(differing.items())[:NUM_NAMED]
        )
        more = f" and {len(differing) - NUM_NAMED} more" if len(differing) > NUM_NAMED else ""
        subject = f"{len(differing)} package{'' if len(differing) == 1 else 's'}"
        yield warning(subject, f"should be as in {lock.name}: {named}{more}", setup)


@check("plugin", "verl finds this package's plugin by itself")
def check_plugin(_case: RunCase) -> Iterator[Finding]:
    """Our launcher names the plugin; who starts verl in another way depends on the entry point."""
    points = importlib.metadata.entry_points(group="verl.plugins")
    if not any(point.value.startswith("megatron_agent.backend.plugin") for point in points):
        yield note(
            "megatron-agent",
            "is not installed as a package, so verl started without 'megatron-agent' "
            "does not load the plugin",
            "Run 'make setup', or set VERL_USE_EXTERNAL_MODULES=megatron_agent.backend.plugin.",
        )


def locked_versions(text: str) -> dict[str, str]:
    r"""Name to version of each pin of a lock file.

    Example:
        >>> locked_versions("numpy==2.1.0 \\\n    --hash=sha256:00\n    # via x\n")
        {'numpy': '2.1.0'}
    """
    return dict(_PIN.findall(text))


def differences(locked: Mapping[str, str]) -> dict[str, str]:
    """Locked packages that are installed in another version, or not at all, in words.

    A local part is not compared: torch 2.11.0+cpu is the lock's 2.11.0.
    """
    installed = {
        _canonical(found.name): found.version for found in importlib.metadata.distributions()
    }
    differing = {}
    for name, version in locked.items():
        found_version = installed.get(_canonical(name))
        if found_version is None:
            differing[name] = f"{version} is missing"
        elif found_version.partition("+")[0] != version.partition("+")[0]:
            differing[name] = f"{version}, got {found_version}"
    return differing


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
