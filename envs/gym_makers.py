"""Makers of Gymnasium environments: records that pickle, and are equal for equal environments."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import gymnasium


@dataclass(frozen=True)
class RegisteredGym:
    """Makes a registered Gymnasium environment; ``gym_id`` as `gymnasium.make` takes it."""

    gym_id: str

    def __call__(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """The environment."""
        return gymnasium.make(self.gym_id, disable_env_checker=True, **kwargs)

    @property
    def render_modes(self) -> list[str]:
        """What it can draw, without making it."""
        creator = registered(self.gym_id).entry_point
        found = (
            gymnasium.envs.registration.load_env_creator(creator)
            if isinstance(creator, str)
            else creator
        )
        return list((getattr(found, "metadata", None) or {}).get("render_modes", []))


@dataclass(frozen=True)
class ClassGym:
    """Makes an environment of a class, ``package.module:Class``."""

    path: str

    def __call__(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """The environment."""
        return self._cls(**kwargs)

    @property
    def render_modes(self) -> list[str]:
        """What it can draw, if its constructor takes ``render_mode``."""
        if "render_mode" not in inspect.signature(self._cls).parameters:
            return []
        return list((self._cls.metadata or {}).get("render_modes", []))

    @property
    def _cls(self) -> Any:
        module_name, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module_name), name)


GymMaker = RegisteredGym | ClassGym


def registered(gym_id: str) -> Any:
    """Gymnasium's record of an id, ``module:ID`` included; raises as Gymnasium and imports do."""
    module_name, colon, bare = gym_id.rpartition(":")
    if colon:
        importlib.import_module(module_name)
    return gymnasium.spec(bare)
