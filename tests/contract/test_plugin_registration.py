"""What a process of a run has after verl loaded our plugin, and what a broken plugin looks like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]

PLUGIN = "megatron_agent.backend.plugin"

_PROBE = """
import json, sys
import verl

after_verl = sorted(
    name for name in ("sglang", "megatron", "verl.trainer.ppo.v1", "megatron_agent.backend.trainer",
                      "megatron_agent.backend.agent_loop") if name in sys.modules
)
from megatron_agent.backend.preflight import registration_problems
problems = {
    "right": registration_problems("cpu", "agent_sync"),
    "wrong": registration_problems("cuda", "agent_nothing"),
}
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.plugin.platform import get_platform
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.workers.engine import EngineRegistry

found = {
    "after_verl": after_verl,
    "problems": problems,
    "trainers": {
        name: [base.__name__ for base in get_trainer_cls(name).__mro__][:4]
        for name in TRAINER_REGISTRY if name.startswith("agent_")
    },
    "agent_loop": _agent_loop_registry.get("gym_steps"),
    "estimators": sorted(ADV_ESTIMATOR_REGISTRY),
    "platform": get_platform().device_name,
    "engines": [
        EngineRegistry.get_engine_cls(kind, "megatron").__module__
        for kind in ("language_model", "value_model")
    ],
}
_agent_loop_registry.pop("gym_steps")
EngineRegistry._engines["value_model"].clear()
problems["bare"] = registration_problems("cpu", "agent_sync")
print("PROBE" + json.dumps(found))
"""


def run_python(
    repo_root: Path, code: str, *, path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, [path, repo_root]))),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=280
    )


@pytest.fixture(scope="module")
def probe() -> dict[str, Any]:
    """A process that did nothing but import verl, and then looked around."""
    done = run_python(Path(__file__).parents[2], _PROBE)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("PROBE"))
    return json.loads(line.removeprefix("PROBE"))


def test_loading_the_plugin_imports_nothing_heavy_itself(probe: dict[str, Any]) -> None:
    assert probe["after_verl"] == []


def test_every_trainer_mode_of_verl_has_ours_over_it(probe: dict[str, Any]) -> None:
    assert probe["trainers"] == {
        "agent_sync": [
            "AgentTrainerSync",
            "AgentTrainerMixin",
            "RunKeepingMixin",
            "PPOTrainerSync",
        ],
        "agent_colocate_async": [
            "AgentTrainerColocateAsync",
            "AgentTrainerMixin",
            "RunKeepingMixin",
            "PPOTrainerColocateAsync",
        ],
        "agent_separate_async": [
            "AgentTrainerSeparateAsync",
            "AgentTrainerMixin",
            "RunKeepingMixin",
            "PPOTrainerSeparateAsync",
        ],
    }


def test_the_agent_loop_is_registered_under_the_name_that_datasets_carry(
    probe: dict[str, Any],
) -> None:
    assert probe["agent_loop"] == {
        "_target_": "megatron_agent.backend.agent_loop.GymStepsAgentLoop"
    }


def test_the_estimator_is_registered_beside_verls(probe: dict[str, Any]) -> None:
    assert {"agent_credit", "grpo", "gae"} <= set(probe["estimators"])


def test_platform_and_engines_are_those_of_the_cpu(probe: dict[str, Any]) -> None:
    assert probe["platform"] == "cpu"
    assert probe["engines"] == ["megatron_agent.backend.cpu.engine"] * 2


def test_preflight_finds_nothing_wrong_when_nothing_is(probe: dict[str, Any]) -> None:
    assert probe["problems"]["right"] == []


def test_preflight_reports_all_that_is_wrong(probe: dict[str, Any]) -> None:
    platform, trainer = probe["problems"]["wrong"]
    assert "verl chose the platform 'cpu', the run is for 'cuda'" in platform
    assert "no trainer 'agent_nothing' is registered" in trainer
    assert "agent_sync" in trainer


def test_preflight_misses_our_agent_loop_and_engines(probe: dict[str, Any]) -> None:
    assert probe["problems"]["bare"] == [
        "no agent loop 'gym_steps' is registered.",
        "no Megatron engine for 'value_model' is registered on a CPU.",
    ]


def test_a_plugin_that_cannot_be_imported_ends_the_process_with_its_reason(
    repo_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('broken on purpose')\n")
    done = run_python(
        repo_root,
        "import verl; print('went on')",
        path=tmp_path,
        VERL_USE_EXTERNAL_MODULES="broken_plugin",
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: broken on purpose")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("ours", "verls"),
    [
        ("megatron_agent.backend.trainer", "verl.trainer.ppo.v1"),
        ("megatron_agent.backend.agent_loop", "verl.experimental.agent_loop"),
    ],
)
def test_a_part_of_ours_that_cannot_be_imported_fails_verls_import(
    repo_root: Path, ours: str, verls: str
) -> None:
    code = f"""
import sys, verl
sys.modules[{ours!r}] = None
import {verls}
print("went on")
"""
    done = run_python(repo_root, code)
    assert done.returncode == 1
    assert ours in done.stderr.rstrip().splitlines()[-1]
    assert done.stdout == ""
