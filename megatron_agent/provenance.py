"""What is installed here, asked without importing any of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

DISTRIBUTIONS: tuple[str, ...] = (
    "megatron-agent",
    "torch",
    "verl",
    "megatron-core",
    "megatron-bridge",
    "sglang",
    "ray",
    "TransferQueue",
    "transformers",
    "numpy",
)

FOUND, NOT_FOUND, NAMESAKE = "found", "not found", "another package of that name"

_REPOSITORY = Path(__file__).resolve().parents[1]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a run does."""
    return {"python": platform.python_version()} | {
        name: distribution_version(name) for name in DISTRIBUTIONS
    }


def distribution_version(name: str) -> str:
    """Version of an installed distribution, or ``not installed``."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def git_commit() -> str | None:
    """Commit of the checkout that runs (``-dirty`` when files differ); None outside one."""
    top = _git("rev-parse", "--show-toplevel")
    # Installed into a virtual environment below some other project, that project's commit says
    # nothing.
    if top is None or Path(top).resolve() != _REPOSITORY:
        return None
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    is_dirty = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return f"{commit}-dirty" if is_dirty else commit


def optional_packages() -> Mapping[str, str]:
    """Whether NVIDIA Apex and Transformer Engine were found; the package works without both.

    The index has an unrelated ``apex`` (a web toolkit of 2013); only NVIDIA's has
    ``multi_tensor_apply``.
    """
    return {
        "NVIDIA Apex": _probe("apex", "multi_tensor_apply"),
        # The plain name also comes with a metapackage that lacks the PyTorch part.
        "Transformer Engine": _probe("transformer_engine", "pytorch"),
    }


def optional_packages_line() -> str:
    """One line for the log.

    Example:
        >>> optional_packages_line()  # doctest: +SKIP
        'Optional packages: NVIDIA Apex not found, Transformer Engine not found.'
    """
    found = ", ".join(f"{name} {state}" for name, state in optional_packages().items())
    return f"Optional packages: {found}."


def _probe(package: str, needed_part: str) -> str:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a stand-in module without a spec
        spec = None
    if spec is None:
        return NOT_FOUND
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    has_part = any(
        (folder / needed_part).is_dir() or (folder / f"{needed_part}.py").is_file()
        for folder in folders
    )
    return FOUND if has_part else NAMESAKE


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(_REPOSITORY), *arguments],
            capture_output=True, text=True, timeout=5, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
