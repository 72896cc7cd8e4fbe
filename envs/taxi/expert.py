"""A driver who knows the map: value iteration over Gymnasium's table of the rules."""

from __future__ import annotations

import functools

from envs.base import TextEnv
from envs.known_dynamics import best_actions, follow
from envs.taxi.env import ACTIONS, TaxiEnv


def expert(env: TextEnv) -> list[str]:
    """The whole way to the delivery, or the next action alone when rain or a fickle passenger may
    change it. Empty when the episode is over.

    Raises:
        TypeError: ``env`` is not a `TaxiEnv`.
    """
    if not isinstance(env, TaxiEnv):
        raise TypeError(f"the taxi expert needs a TaxiEnv, got {type(env).__name__}.")
    if env.done:
        return []
    plan = follow(env.gym.P, _policy(env.is_rainy), int(env.gym.s))
    return [ACTIONS[number] for number in (plan[:1] if env.is_fickle else plan)]


@functools.cache
def _policy(is_rainy: bool) -> list[int]:
    env = TaxiEnv()
    env.reset(seed=0, options={"is_rainy": is_rainy})
    return best_actions(env.gym.P)
