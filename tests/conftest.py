"""Fixtures that every tier shares."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

# The same examples on every run of CI, so that a change is judged by what it changes; elsewhere new
# ones every time, so that what they miss is found by those who can look into it.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

REPO_ROOT = Path(__file__).resolve().parents[1]

MODEL_SHAPE = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}


class Extra(NamedTuple):
    """An extra with a lock file of its own, which ``make setup`` alone does not install."""

    module: str
    """Cannot be imported where the extra is not installed."""
    tests: tuple[str, ...]
    """Files that need it."""
    program: str = ""
    """It also needs this on ``PATH``."""

    @property
    def is_there(self) -> bool:
        """Whether its tests can run here."""
        has_program = not self.program or shutil.which(self.program) is not None
        return has_program and importlib.util.find_spec(self.module) is not None


EXTRAS = {
    "alfworld": Extra(
        "fast_downward",
        ("tests/contract/test_textworld_patches.py", "tests/unit/envs/alfworld/test_env.py"),
    ),
    "scienceworld": Extra(
        "scienceworld",
        ("tests/unit/envs/scienceworld/test_scienceworld_env.py",),
        program="java",
    ),
    "textworld": Extra("textworld", ("tests/unit/envs/textworld/test_textworld_env.py",)),
    "textworld-express": Extra(
        "textworld_express",
        ("tests/unit/envs/textworld_express/test_textworld_express_env.py",),
        program="java",
    ),
}
LEFT_OUT = {name: extra.tests for name, extra in EXTRAS.items() if not extra.is_there}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Tests of an extra belong to those who installed it. For others there is nothing to skip."""
    return collection_path.as_posix().endswith(tuple(sum(LEFT_OUT.values(), ()))) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest run begins first, or it would be the last for which the others wait."""
    items.sort(key=lambda item: "/test_resume.py" not in item.nodeid)


class TierScheduling(LoadScopeScheduling):
    """How `tools/test.sh` shares contract and stack tests between two processes: what imports verl
    stays in one, in its order; whole training runs go one by one to whoever is free.
    """

    def _split_scope(self, nodeid: str) -> str:
        """Tests of one scope are run by one process."""
        return nodeid if _starts_runs(nodeid.partition("::")[0]) else "one process"


@lru_cache
def _starts_runs(test_file: str) -> bool:
    return "training_run" in (REPO_ROOT / test_file).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TierScheduling | None:
    return TierScheduling(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_report_header() -> list[str]:
    """Say what is left out and how to have it."""
    return [
        f"extra {name}: not installed; left out: {', '.join(tests)}"
        for name, tests in LEFT_OUT.items()
    ]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model that is only a shape: as much of one as the checks of a configuration read."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL_SHAPE))
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The folder that holds setup.py."""
    return REPO_ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real environment data that is not part of the repository.

    It is named by ``MEGATRON_AGENT_DATA`` (default ``../shared/data`` beside the checkout). Without
    it a test is skipped on a laptop, and fails where a skip would hide a gap: under ``CI``, or with
    ``MEGATRON_AGENT_REQUIRE_DATA`` set.
    """
    folder = Path(os.environ.get("MEGATRON_AGENT_DATA", REPO_ROOT.parent / "shared" / "data"))
    if folder.is_dir():
        return folder
    reason = (
        f"MEGATRON_AGENT_DATA must name a folder of test data, got {folder}, which does not exist. "
        "Set it, or run without CI and MEGATRON_AGENT_REQUIRE_DATA to skip these tests."
    )
    if os.environ.get("CI") or os.environ.get("MEGATRON_AGENT_REQUIRE_DATA"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def openenv_url() -> Iterator[str]:
    """Address of a program that speaks OpenEnv's protocol; what it serves is said in its file."""
    with subprocess.Popen(
        [sys.executable, str(REPO_ROOT / "tests" / "openenv_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


@pytest.fixture(scope="session")
def textworld_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with easy generated games, two for training and two to evaluate."""
    folder = tmp_path_factory.mktemp("textworld")
    program = [sys.executable, "-m", "envs.textworld.generate", f"--out={folder}"]
    flags = [
        "--level=1",
        "--jobs=2",
        "--train=1",
        "--eval=1",
        "--kinds",
        "treasure_hunter",
        "cooking",
    ]
    subprocess.run([*program, *flags], cwd=REPO_ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def appworld_options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Options that lead to a stand-in for AppWorld's package, and to lists of three tasks."""
    folder = tmp_path_factory.mktemp("appworld")
    python = folder / "python"
    stand_in = REPO_ROOT / "tests" / "appworld_stand_in"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={stand_in} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    datasets = folder / "data" / "datasets"
    datasets.mkdir(parents=True)
    (datasets / "train.txt").write_text("a1_1\na1_2:tag\n")
    (datasets / "dev.txt").write_text("b2_1\n")
    return {"python": str(python), "data_dir": str(folder)}


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy of 0.2 M parameters whose heads and layers divide by 2."""
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    subprocess.run(
        [
            sys.executable,
            str(REPO_ROOT / "tools" / "make_policy.py"),
            f"--out={folder}",
            "--hidden=64",
            "--layers=2",
            "--intermediate=128",
        ],
        check=True,
        cwd=REPO_ROOT,
        stdout=subprocess.DEVNULL,
    )
    return folder


@pytest.fixture(scope="session")
def small_run() -> tuple[str, ...]:
    """Overrides of a run of the whole stack: 2 groups of 3 sessions, 3 steps an episode."""
    return (
        "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "env.rollout.n=3",
        "env.max_steps=3",
        "env.tasks.num_train=16",
        "env.tasks.num_eval=4",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
    )
