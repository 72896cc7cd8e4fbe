"""Importing the rollout, the environments and the tasks pulls in nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

HEAVY = ("torch", "verl", "ray", "sglang", "megatron", "transformers", "tensordict")
MODULES = (
    "envs.registry",
    "envs.frozenlake",
    "envs.checker",
    "envs.check_report",
    "envs.class_path",
    "envs.gym_adapter",
    "envs.manager_adapter",
    "megatron_agent.env_cli.commands",
    "megatron_agent.env_cli.evaluate",
    "megatron_agent.tasks",
    "megatron_agent.rollout.env_pool",
    "megatron_agent.rollout.episode",
    "megatron_agent.rollout.journal",
    "megatron_agent.rollout.memory",
    "megatron_agent.rollout.memory_check",
    "megatron_agent.rollout.memory_modules",
    "megatron_agent.rollout.samples",
)
WORKER = "megatron_agent.rollout.env_worker"
ALSO_HEAVY_FOR_A_WORKER = (*HEAVY, "pyarrow", "pandas", "numpy", "gymnasium")


def heavy_after_importing(modules: tuple[str, ...], heavy: tuple[str, ...]) -> str:
    code = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
print(*sorted(set({heavy!r}) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_the_rollout_needs_nothing_heavy():
    assert heavy_after_importing(MODULES, HEAVY) == ""


def test_a_worker_process_starts_with_the_standard_library_alone():
    assert heavy_after_importing((WORKER,), ALSO_HEAVY_FOR_A_WORKER) == ""


def test_environments_know_nothing_of_the_trainer():
    code = (
        "import sys, envs.checker, envs.frozenlake; "
        "assert not [name for name in sys.modules if name.startswith('megatron_agent')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
