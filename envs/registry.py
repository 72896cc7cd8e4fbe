"""Environment names, and how to find what stands behind one.

A name is one of four things, everywhere a name is taken (configuration, task files, commands):

- an exact registered name: built in, or of an installed package (entry point group
  ``megatron_agent.envs``, ``my_env = "my_package.my_env:SPEC"``);
- ``gym:ID``: any Gymnasium environment with discrete or text actions (`envs.gym_adapter`);
- ``manager:package.module:factory``: a verl-agent style manager (`envs.manager_adapter`);
- ``package.module:Name``: an `EnvSpec`, a `TextEnv` class or a Gymnasium class (`envs.class_path`).

The built-in environments are a table from name to module, imported only when asked for, so that a
missing optional dependency of one does not disturb the others.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
from collections.abc import Mapping

from envs.spec import EnvSpec

__all__ = [
    "EnvCollisionError",
    "EnvLoadError",
    "EnvNotFoundError",
    "EnvSpec",
    "env_names",
    "load_env",
]

ENTRY_POINT_GROUP = "megatron_agent.envs"

_BUILT_IN: Mapping[str, str] = {
    "alfworld": "envs.alfworld.spec:SPEC",
    "appworld": "envs.appworld:SPEC",
    "babyai": "envs.babyai:SPEC",
    "blackjack": "envs.blackjack:SPEC",
    "cliffwalking": "envs.cliffwalking:SPEC",
    "cards": "envs.cards:SPEC",
    "frozenlake": "envs.frozenlake:SPEC",
    "openenv": "envs.openenv:SPEC",
    "taxi": "envs.taxi:SPEC",
    "textworld": "envs.textworld.spec:SPEC",
    "textworld_express": "envs.textworld_express.spec:SPEC",
    "scienceworld": "envs.scienceworld.spec:SPEC",
    "sokoban": "envs.sokoban:SPEC",
    "webshop": "envs.webshop:SPEC",
    "search": "envs.search:SPEC",
}
_EXTRAS: Mapping[str, str] = {
    "babyai": "minigrid",
    "textworld_express": "textworld-express",
}
"""Built-in name to the extra of ``setup.py`` that installs what it needs."""

_SCHEMES: Mapping[str, str] = {
    "gym": "envs.gym_adapter:gym_spec",
    "manager": "envs.manager_adapter:manager_spec",
}
"""Prefix of a name to the function that makes a spec of the whole name."""


class EnvNotFoundError(LookupError):
    """No environment of that name; the message lists the names and the nearest match."""


class EnvLoadError(ImportError):
    """An environment of that name exists but cannot be imported or is not an ``EnvSpec``."""


class EnvCollisionError(ValueError):
    """Two packages registered different environments under one name."""


def env_names() -> tuple[str, ...]:
    """Every registered name, sorted; imports no environment."""
    return tuple(sorted(_targets()))


def load_env(name: str) -> EnvSpec:
    """The spec that ``name`` stands for; ``spec.name`` is ``name``.

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
    if name in targets:
        return _load_target(name, targets[name])
    if ":" in name:
        return _load_path(name)
    near = difflib.get_close_matches(name, targets, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise EnvNotFoundError(
        f"no environment is named {name!r}.{hint} Registered: {', '.join(sorted(targets))}; "
        f"or gym:ID, or package.module:Class."
    )


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
def _load_path(name: str) -> EnvSpec:
    """The spec of a name with a colon; an environment is looked up for every row and episode."""
    target = _SCHEMES.get(name.partition(":")[0], "envs.class_path:class_path_spec")
    module_name, _, function = target.partition(":")
    spec = getattr(importlib.import_module(module_name), function)(name)
    assert isinstance(spec, EnvSpec)
    return spec


@functools.cache
def _load_target(name: str, target: str) -> EnvSpec:
    module_name, _, attribute = target.partition(":")
    try:
        spec = getattr(importlib.import_module(module_name), attribute or "SPEC")
    except (ImportError, AttributeError) as error:
        raise EnvLoadError(
            f"environment {name!r} ({target}) cannot be loaded: {error}. "
            f"Install what it needs, e.g. pip install 'megatron-agent[{_EXTRAS.get(name, name)}]'."
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
