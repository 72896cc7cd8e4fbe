"""What `credit.py` is measured against: the same numbers, computed in the most obvious way.

Written for this benchmark, to be read in a minute, not to be fast.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from megatron_agent.credit import CreditConfig, CreditRows

EPSILON = 1e-6


def plain_gigpo(rows: CreditRows, config: CreditConfig) -> list[float]:
    """GiGPO with dictionaries and lists, row by row; no penalty."""
    groups = rows.group_N.tolist()
    sessions = list(zip(groups, rows.session_N.tolist(), strict=True))
    states = list(zip(groups, rows.anchor_N.tolist(), strict=True))
    steps = rows.step_N.tolist()
    returns = _returns(rows.step_reward_N.tolist(), steps, sessions, config.gamma)
    by_steps = _normaliser(states, returns, [True] * len(steps), config)
    scores = rows.episode_return_N.tolist()
    by_episodes = _normaliser(groups, scores, [step == 0 for step in steps], config)
    return [
        config.episode_advantage_w * by_episodes(group, score)
        + config.step_advantage_w * by_steps(state, step_return)
        for group, score, state, step_return in zip(groups, scores, states, returns, strict=True)
    ]


def quadratic_returns(rows: CreditRows, gamma: float) -> list[float]:
    """Step returns where every row looks through the whole batch for the rest of its session.

    Our own code, in the cost class of the public reference implementation's returns.
    """
    sessions = list(zip(rows.group_N.tolist(), rows.session_N.tolist(), strict=True))
    steps, rewards = rows.step_N.tolist(), rows.step_reward_N.tolist()
    returns = []
    for session, step in zip(sessions, steps, strict=True):
        rest = [
            gamma ** (later - step) * reward
            for other, later, reward in zip(sessions, steps, rewards, strict=True)
            if other == session and later >= step
        ]
        returns.append(sum(rest))
    return returns


def difflib_codes(texts: Sequence[str], groups: Sequence[int], threshold: float) -> list[int]:
    """Similarity groups by brute force: each row tries the first member of every group so far."""
    leaders: dict[int, list[tuple[str, int]]] = {}
    codes = []
    num_codes = 0
    for text, group in zip(texts, groups, strict=True):
        for leader, code in leaders.setdefault(group, []):
            if difflib.SequenceMatcher(None, leader, text).ratio() >= threshold:
                codes.append(code)
                break
        else:
            leaders[group].append((text, num_codes))
            codes.append(num_codes)
            num_codes += 1
    return codes


def _returns(
    rewards: Sequence[float], steps: Sequence[int], sessions: Sequence[Hashable], gamma: float
) -> list[float]:
    rows_of: dict[Hashable, list[int]] = {}
    for row, session in enumerate(sessions):
        rows_of.setdefault(session, []).append(row)
    returns = [0.0] * len(rewards)
    for members in rows_of.values():
        following = 0.0
        for row in sorted(members, key=steps.__getitem__, reverse=True):
            following = rewards[row] + gamma * following
            returns[row] = following
    return returns


def _normaliser(
    keys: Sequence[Hashable], values: Sequence[float], counts: Sequence[bool], config: CreditConfig
) -> Callable[[Hashable, float], float]:
    """A function from a group and a value to the value relative to its group."""
    members: dict[Hashable, list[float]] = {}
    for key, value, counted in zip(keys, values, counts, strict=True):
        if counted:
            members.setdefault(key, []).append(value)
    statistics = {}
    for key, group in members.items():
        mean = sum(group) / len(group)
        flat = np.isclose(min(group), max(group), rtol=1e-9, atol=1e-9)
        square = sum((value - mean) ** 2 for value in group) / max(len(group) - 1, 1)
        divisor = math.sqrt(square) + EPSILON if config.mode == "mean_std_norm" else 1.0
        statistics[key] = (mean, math.inf if flat else divisor)

    def normalise(key: Hashable, value: float) -> float:
        mean, divisor = statistics[key]
        return (value - mean) / divisor

    return normalise
