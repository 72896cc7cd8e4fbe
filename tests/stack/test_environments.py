"""Every shipped environment goes through the whole stack, all in one run of mixed tasks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from envs.registry import env_names
from megatron_agent.tasks import EnvTask, generate_tasks, write_tasks

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

MakeRun = Callable[..., "TrainingRun"]  # noqa: F821 - see conftest.py

REPO_ROOT = Path(__file__).resolve().parents[2]
NEEDS = {
    "alfworld": "fast_downward",
    "scienceworld": "scienceworld",
    "textworld": "textworld",
    "textworld_express": "textworld_express",
}
"""Environments of an extra with a lock file of its own, and a module of it."""


def installed_names() -> list[str]:
    return [
        name
        for name in env_names()
        if name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None
    ]


def tasks_of(
    names: list[str],
    *,
    alfworld: Path,
    appworld: dict[str, str],
    data: Path,
    openenv_url: str,
    textworld: Path | None,
) -> list[EnvTask]:
    games = [{"game": game} for game in ("number_line", "ez_points", "points24", "blackjack")]
    options = {
        "cards": games,
        "alfworld": [{"data_dir": str(alfworld)}],
        "appworld": [appworld],
        "openenv": [{"url": f"{openenv_url}/hunt", "text_field": "text"}],
        "search": [{"data_dir": str(data)}],
        "textworld": [{"data_dir": str(textworld)}],
        "webshop": [{"data_dir": str(data)}],
    }
    return [
        task
        for name in names
        # Ids come from seeds, so each game gets its own.
        for seed, chosen in enumerate(options.get(name, [{}]))
        for task in generate_tasks(name, 1, 0, seed=seed, options=chosen)
    ]


@pytest.fixture
def alfworld(shared_data: Path, tmp_path: Path) -> Path:
    """Official games, as if they were for training."""
    with tarfile.open(shared_data / "alfworld_json_2.1.1_valid_seen140.tar.xz") as file:
        file.extractall(tmp_path / "alfworld", filter="data")
    games = tmp_path / "alfworld" / "json_2.1.1"
    (games / "valid_seen").rename(games / "train")
    return tmp_path / "alfworld"


def test_every_environment_gives_rows_that_are_trained_on(
    training_run: MakeRun,
    tmp_path: Path,
    shared_data: Path,
    alfworld: Path,
    appworld_options: dict[str, str],
    openenv_url: str,
    request: pytest.FixtureRequest,
) -> None:
    names = installed_names()
    textworld = request.getfixturevalue("textworld_games") if "textworld" in names else None
    tasks = [
        *tasks_of(
            names,
            alfworld=alfworld,
            appworld=appworld_options,
            data=shared_data,
            openenv_url=openenv_url,
            textworld=textworld,
        ),
        *generate_tasks("gym:Taxi-v4", 1, 0),
    ]
    write_tasks(tmp_path / "train.parquet", tasks)
    policy = tmp_path / "policy"
    # Its tokenizer has seen the texts of all of them, so that their prompts are short enough.
    subprocess.run(
        [
            sys.executable,
            str(REPO_ROOT / "tools" / "make_policy.py"),
            f"--out={policy}",
            "--env",
            *names,
            "--vocab-size=4096",
            "--hidden=32",
            "--layers=1",
            "--heads=2",
            "--kv-heads=1",
            "--intermediate=32",
        ],
        check=True,
        cwd=REPO_ROOT,
        env={**os.environ, "MEGATRON_AGENT_DATA": str(shared_data)},
        stdout=subprocess.DEVNULL,
    )
    run = training_run(
        "mixed",
        f"data.train_files={tmp_path}/train.parquet",
        f"actor_rollout_ref.model.path={policy}",
        # A class path or a name of Gymnasium in a task file counts only if the run names it too.
        "env=custom",
        "env.env_name=gym:Taxi-v4",
        f"data.train_batch_size={len(tasks)}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={len(tasks)}",
        "env.rollout.n=2",
        "env.max_steps=2",
        "env.max_failure_rate=0",
        "env.reset_timeout_s=300",
        "data.max_prompt_length=4000",
        "trainer.total_training_steps=1",
    )
    assert run.finish() == 0, run.output()[-3000:]
    played = run.episodes()
    assert {episode["env"] for episode in played} == {*names, "gym:Taxi-v4"}
    assert len(played) == 2 * len(tasks)
    for episode in played:
        assert not episode["failure"], (episode["env"], episode["failure"])
        assert episode["num_steps"] >= 1, episode["env"]
    (line,) = run.metrics()
    assert line["train/optimizer_steps"] == 1
    assert line["training/rollout_probs_diff_max"] < 1e-4
