"""Exact environment names, and how to find what stands behind one.

The built-in environments are a table from name to module, imported only when asked for, so that a
missing optional dependency of one does not disturb the others. Installed packages add more through
the entry point group ``megatron_agent.envs`` (``my_env = "my_package.my_env:SPEC"``).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.base import ParsedAction, PromptContext, TextEnv
from envs.options import Option, resolve_options
from envs.tags import format_response

ENTRY_POINT_GROUP = "megatron_agent.envs"

_BUILT_IN: Mapping[str, str] = {
    "frozenlake": "envs.frozenlake:SPEC",
}


class EnvNotFoundError(LookupError):
    """No environment of that name; the message lists the names and the nearest match."""


class EnvLoadError(ImportError):
    """An environment of that name exists but cannot be imported or is not an ``EnvSpec``."""


class EnvCollisionError(ValueError):
    """Two packages registered different environments under one name."""


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """All that the rest of the system needs to know about one environment."""

    name: str
    description: str
    """One sentence a person reads in the dataset."""
    make: Callable[[], TextEnv]
    """Factory; importable (a class or a module-level function), since workers call it."""
    build_prompt: Callable[[PromptContext], str]
    project: Callable[[str, Sequence[str]], ParsedAction]
    """``(response text, admissible actions) -> ParsedAction``; pure, and never raises."""
    expert: Callable[[TextEnv], list[str]] | None = None
    """Actions from the current state to success. A stochastic environment may return only the next
    action, so callers ask again after each step and take the first. Empty: nothing left to do, or
    no way."""
    format_response: Callable[[str], str] = format_response
    """``action -> response`` that `project` reads back as that action; for demonstrations."""
    option_rules: Mapping[str, Option] = field(default_factory=dict)
    start_key: Callable[[int, Mapping[str, Any]], str] | None = None
    """``(seed, options) -> key``, equal when two seeds are the same task in disguise. None: seeds
    differ."""
    corpus: Callable[[], Iterable[str]] = tuple
    """Texts that a tokenizer for this environment should have seen (prompts and responses)."""

    @property
    def default_options(self) -> dict[str, Any]:
        """A fresh dict with every option at its default."""
        return {name: option.default for name, option in self.option_rules.items()}

    def resolve_options(self, options: Mapping[str, Any] | None) -> dict[str, Any]:
        """Defaults filled in; raises ``ValueError`` naming option, rule and value."""
        return resolve_options(self.name, self.option_rules, options)

    def validate_options(self, options: Mapping[str, Any] | None) -> None:
        """Raise ``ValueError`` naming option, rule and value when ``options`` cannot work."""
        self.resolve_options(options)


def env_names() -> tuple[str, ...]:
    """Every registered name, sorted; imports no environment."""
    return tuple(sorted(_targets()))


def load_env(name: str) -> EnvSpec:
    """The spec registered under exactly ``name``.

    Raises:
        EnvNotFoundError: no such name.
        EnvLoadError: its module cannot be imported (a missing optional dependency), or holds no
            ``EnvSpec``.
        EnvCollisionError: two packages claim one name.

    Example:
        >>> load_env("frozenlake").name
        'frozenlake'
    """
    targets = _targets()
    if name not in targets:
        near = difflib.get_close_matches(str(name), targets, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise EnvNotFoundError(
            f"no environment is named {name!r}.{hint} Registered: {', '.join(sorted(targets))}."
        )
    return _load_target(name, targets[name])


@functools.cache
def _targets() -> dict[str, str]:
    """Name to ``module:attribute``. Cached: looking through the metadata of every installed package
    takes tens of milliseconds, and environments are looked up for every row and every episode.
    """
    targets = dict(_BUILT_IN)
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        known = targets.setdefault(entry_point.name, entry_point.value)
        # The same target twice is one package seen twice on sys.path, not a collision.
        if known != entry_point.value:
            raise EnvCollisionError(
                f"environment name {entry_point.name!r} is claimed by both {known!r} and "
                f"{entry_point.value!r}. Rename one of the {ENTRY_POINT_GROUP!r} entry points."
            )
    return targets


@functools.cache
def _load_target(name: str, target: str) -> EnvSpec:
    module_name, _, attribute = target.partition(":")
    try:
        spec = getattr(importlib.import_module(module_name), attribute or "SPEC")
    except (ImportError, AttributeError) as error:
        raise EnvLoadError(
            f"environment {name!r} ({target}) cannot be loaded: {error}. "
            f"Install what it needs, e.g. pip install 'megatron-agent[{name}]'."
        ) from error
    if not isinstance(spec, EnvSpec):
        raise EnvLoadError(
            f"environment {name!r}: {target} must be an EnvSpec, got {type(spec).__name__}."
        )
    if spec.name != name:
        raise EnvLoadError(
            f"environment {name!r}: the name in {target} must be the one it is registered under, "
            f"got {spec.name!r}."
        )
    return spec
