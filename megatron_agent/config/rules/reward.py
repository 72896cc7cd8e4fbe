"""Rules of a user's own reward function."""

from __future__ import annotations

from pathlib import Path

from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues

PATH_KEY = "reward.custom_reward_function.path"
NAME_KEY = "reward.custom_reward_function.name"


def check_overlong_penalty(values: ConfigValues, findings: Findings) -> None:
    """The buffer is a part of the allowed length."""
    key = "algorithm.overlong_penalty.buffer_length"
    buffer_length = values.integer(key)
    max_length = values.integer("data.max_response_length")
    if not values.number("algorithm.overlong_penalty.coef"):
        return
    if buffer_length is not None and max_length is not None and buffer_length > max_length:
        findings.problem(
            key,
            f"must be at most data.max_response_length ({max_length})",
            buffer_length,
            f"Use {max(1, max_length // 5)}.",
        )


def check_reward(values: ConfigValues, findings: Findings) -> None:
    """The file is there, and a function named. What is in it is loaded where it runs."""
    name = values.get(NAME_KEY)
    if not isinstance(name, str):
        rule = "must be the name of the function in that file"
        findings.problem(NAME_KEY, rule, name, "Leave it at its default (compute_score).")
    path = values.get(PATH_KEY)
    if path is None or (isinstance(path, str) and "://" in path):  # verl's pkg://module
        return
    if not isinstance(path, str) or not Path(path).is_file():
        findings.problem(
            PATH_KEY, "must be a Python file", path, "Correct the path, or set it to null."
        )
