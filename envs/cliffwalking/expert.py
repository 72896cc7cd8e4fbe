"""A walker who knows the ground: value iteration over Gymnasium's table of the rules."""

from __future__ import annotations

import functools

from envs.base import TextEnv
from envs.cliffwalking.env import ACTIONS, CliffWalkingEnv
from envs.known_dynamics import best_actions, follow


def expert(env: TextEnv) -> list[str]:
    """The whole way, or on slippery ground the next action alone. Empty when the episode is over.

    Raises:
        TypeError: ``env`` is not a `CliffWalkingEnv`.
    """
    if not isinstance(env, CliffWalkingEnv):
        raise TypeError(f"the cliff expert needs a CliffWalkingEnv, got {type(env).__name__}.")
    if env.done:
        return []
    plan = follow(env.gym.P, _policy(env.is_slippery), int(env.gym.s))
    return [ACTIONS[number] for number in plan]


@functools.cache
def _policy(is_slippery: bool) -> list[int]:
    env = CliffWalkingEnv()
    env.reset(seed=0, options={"is_slippery": is_slippery})
    return best_actions(env.gym.P)
