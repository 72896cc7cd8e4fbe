"""The demo starts afresh, and removes nothing but an earlier run; its policy suits the run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_agent.demo import make_policy, remove_earlier_run
from megatron_agent.errors import ConfigError
from megatron_agent.policy import build
from megatron_agent.run_lock import LOCK_FILE

pytestmark = pytest.mark.unit


def test_an_earlier_run_is_removed_and_the_folder_held(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "checkpoints" / "global_step_1").mkdir(parents=True)
    remove_earlier_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    # Stopped before its run.json was written: still a folder of the demo's.
    remove_earlier_run(tmp_path)


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    remove_earlier_run(tmp_path / "runs" / "demo")
    assert (tmp_path / "runs" / "demo").is_dir()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError) as raised:
        remove_earlier_run(tmp_path)
    assert str(raised.value) == (
        "--run-dir must be a new folder or that of an earlier run: what is in it would be "
        f"removed, got '{tmp_path}'. Choose another folder, or remove it yourself."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[build.PolicyRecipe]:
    """Recipes of policies, of which only the record is written."""
    recipes: list[build.PolicyRecipe] = []

    def build_policy(recipe: build.PolicyRecipe, folder: Path, **_: Any) -> None:
        recipes.append(recipe)
        folder.mkdir(exist_ok=True)
        assert recipe.warm_start is not None
        record = {
            "env": recipe.env,
            "env_options": dict(recipe.env_options),
            "warm_start": recipe.warm_start.to_dict(),
        }
        (folder / build.RECIPE_FILE).write_text(json.dumps(record))

    monkeypatch.setattr(build, "build_policy", build_policy)
    return recipes


def _env(**changes: Any) -> SimpleNamespace:
    settings = {
        "env_name": "frozenlake",
        "options": {"size": 4},
        "max_steps": 9,
        "history_length": 3,
        "memory": "search",
        "prompt_file": None,
    }
    return SimpleNamespace(**(settings | changes))


def test_the_policy_is_warm_started_as_the_run_prompts_it(
    tmp_path: Path, made: list[build.PolicyRecipe]
) -> None:
    make_policy(tmp_path / "policy", _env(prompt_file="my.txt"))
    warm_start = made[0].warm_start
    assert warm_start is not None
    assert (warm_start.max_steps, warm_start.history_length) == (9, 3)
    assert (warm_start.memory, warm_start.prompt_file) == ("search", "my.txt")


def test_a_policy_is_kept_as_long_as_its_prompts_are_the_same(
    tmp_path: Path, made: list[build.PolicyRecipe]
) -> None:
    for env, num_made in (
        (_env(), 1),
        (_env(), 1),
        (_env(memory="window"), 2),
        (_env(prompt_file="my.txt"), 3),
        (_env(prompt_file="my.txt"), 4),  # what stands in the file may have changed
    ):
        make_policy(tmp_path / "policy", env)
        assert len(made) == num_made
