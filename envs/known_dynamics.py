"""Experts for games whose rules are a table: value iteration over Gymnasium's ``P``.

``P[state][action]`` lists what can follow as ``(probability, next state, reward, terminated)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Transitions = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]

_DISCOUNT = 0.999
_MAX_SWEEPS = 20_000


def best_actions(transitions: Transitions) -> list[int]:
    """The action of greatest expected return in every state, by value iteration.

    The discount, close to 1, breaks ties in favour of progress.

    Example:
        >>> best_actions({0: {0: [(1.0, 0, -1.0, False)], 1: [(1.0, 1, 5.0, True)]},
        ...               1: {0: [(1.0, 1, 0.0, True)], 1: [(1.0, 1, 0.0, True)]}})
        [1, 0]
    """
    num_states, num_actions = len(transitions), len(transitions[0])
    num_outcomes = max(
        len(outcomes) for actions in transitions.values() for outcomes in actions.values()
    )
    # [state, action, outcome]; missing outcomes have probability 0.
    shape = (num_states, num_actions, num_outcomes)
    chance, reward, goes_on = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    follower = np.zeros(shape, dtype=np.int64)
    for state, actions in transitions.items():
        for action, outcomes in actions.items():
            for place, (probability, there, gain, is_end) in enumerate(outcomes):
                at = (state, action, place)
                chance[at], follower[at], reward[at] = probability, there, gain
                goes_on[at] = not is_end
    values = np.zeros(num_states)
    for _ in range(_MAX_SWEEPS):
        returns = (chance * (reward + _DISCOUNT * goes_on * values[follower])).sum(axis=2)
        updated = returns.max(axis=1)
        converged = np.abs(updated - values).max() < 1e-9
        values = updated
        if converged:
            break
    return [int(action) for action in returns.argmax(axis=1)]


def follow(transitions: Transitions, policy: Sequence[int], state: int) -> list[int]:
    """The actions of ``policy`` until the end, or the next one alone where chance decides.

    Example:
        >>> follow({0: {0: [(1.0, 1, 0.0, False)]}, 1: {0: [(1.0, 1, 1.0, True)]}}, [0, 0], 0)
        [0, 0]
    """
    plan: list[int] = []
    while len(plan) <= len(transitions):
        action = policy[state]
        outcomes = transitions[state][action]
        plan.append(action)
        if len({(there, is_end) for _, there, _, is_end in outcomes}) > 1:
            return plan[:1]
        _, state, _, is_end = outcomes[0]
        if is_end:
            return plan
    return plan[:1]
