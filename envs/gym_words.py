"""Gymnasium's observations and actions in words."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from envs.printable import printable

_MOST_NUMBERS = 64
"""An array with more numbers is told by its shape alone."""

_WELL_KNOWN: Mapping[str, tuple[str, ...]] = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("push left", "push right"),
    "MountainCar": ("push left", "wait", "push right"),
    "Acrobot": ("push left", "wait", "push right"),
    "LunarLander": ("wait", "fire left engine", "fire main engine", "fire right engine"),
}
"""Names for Gymnasium's own environments, which number their actions."""


def action_names(env: Any) -> tuple[str, ...]:
    """A name for each discrete action: the environment's own, well-known ones, or numbers from 0.
    Empty for text actions.

    Raises:
        ValueError: the actions are neither discrete nor text.
    """
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Text):
        return ()
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ValueError(
            f"its actions must be Discrete or Text, got {space}. Write a TextEnv around it."
        )
    num_actions = int(space.n)
    for names in _candidates(env):
        if len(names) == num_actions == len(set(names)):
            return names
    return tuple(str(number) for number in range(num_actions))


def _candidates(env: Any) -> list[tuple[str, ...]]:
    inner, found = env.unwrapped, []
    if callable(getattr(inner, "get_action_meanings", None)):
        found.append(tuple(map(str, inner.get_action_meanings())))
    actions = getattr(inner, "actions", None)
    if isinstance(actions, enum.EnumMeta):
        members = list(actions.__members__)
        found.append(tuple(member.lower().replace("_", " ") for member in members))
    if env.spec is not None and str(env.spec.entry_point).startswith("gymnasium."):
        found.append(_WELL_KNOWN.get(env.spec.name, ()))
    return found


def legal_actions(names: tuple[str, ...], info: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that ``info["action_mask"]`` allows; all of them without a mask, or with an empty
    one.
    """
    mask = info.get("action_mask")
    if mask is None or len(mask) != len(names):
        return names
    return tuple(name for name, legal in zip(names, mask, strict=True) if legal) or names


def in_words(observation: Any) -> str:
    """An observation as printable text.

    Example:
        >>> print(in_words({"at": np.array([1, 2]), "mission": "go"}))
        at: 1, 2
        mission: go
    """
    if isinstance(observation, Mapping):
        return "\n".join(f"{key}: {in_words(value)}" for key, value in observation.items())
    if isinstance(observation, np.ndarray):
        return _array_in_words(observation)
    if isinstance(observation, (tuple, list)):
        return ", ".join(map(in_words, observation))
    if isinstance(observation, (float, np.floating)):
        return f"{float(observation):.3g}"
    if isinstance(observation, np.generic):
        observation = observation.item()
    return printable(str(observation))


def _array_in_words(array: np.ndarray) -> str:
    if array.size > _MOST_NUMBERS:
        return f"(an array of shape {'x'.join(map(str, array.shape))})"
    if array.ndim <= 1:
        return ", ".join(in_words(value) for value in array.ravel())
    return "\n".join(_array_in_words(row) for row in array)


def as_anchor(observation: Any) -> Any:
    """An observation as plain values, arrays kept: what steps are grouped by."""
    if isinstance(observation, Mapping):
        return {str(key): as_anchor(value) for key, value in observation.items()}
    if isinstance(observation, (tuple, list)):
        return tuple(map(as_anchor, observation))
    if isinstance(observation, np.generic):
        return observation.item()
    # Copied: some environments write the next observation into the same memory.
    return observation.copy() if isinstance(observation, np.ndarray) else observation


def as_image(observation: Any) -> Any:
    """The observation, or the first entry of it, that is an RGB picture; None without one."""
    candidates = observation.values() if isinstance(observation, Mapping) else [observation]
    for value in candidates:
        if (
            isinstance(value, np.ndarray)
            and value.dtype == np.uint8
            and value.ndim == 3
            and value.shape[2] == 3
            and min(value.shape[:2]) >= 16
        ):
            return value.copy()
    return None
