"""Rules of a user's own reward function."""

from __future__ import annotations

from pathlib import Path

from megatron_agent.config.findings import Findings
from megatron_agent.config.values import ConfigValues

PATH_KEY = "reward.custom_reward_function.path"


def check_reward(values: ConfigValues, findings: Findings) -> None:
    """The file is there. What is in it is loaded where it runs."""
    path = values.get(PATH_KEY)
    if path is None or (isinstance(path, str) and "://" in path):  # verl's pkg://module
        return
    if not isinstance(path, str) or not Path(path).is_file():
        findings.problem(
            PATH_KEY, "must be a Python file", path, "Correct the path, or set it to null."
        )
