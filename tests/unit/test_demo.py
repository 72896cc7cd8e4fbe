"""The demo starts afresh, and removes nothing but an earlier run; its policy suits the run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_agent.demo import main, make_policy, remove_earlier_run
from megatron_agent.errors import ConfigError
from megatron_agent.policy import build
from megatron_agent.run_folder import FORMAT
from megatron_agent.run_lock import LOCK_FILE

pytestmark = pytest.mark.unit


def _record(name: str) -> str:
    return json.dumps({"format": FORMAT, "attempts": [{"config": {"run": {"name": name}}}]})


def test_an_earlier_run_is_removed_and_the_folder_held(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(_record("demo"))
    (tmp_path / "checkpoints" / "global_step_1").mkdir(parents=True)
    remove_earlier_run(tmp_path, "demo")
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    # Stopped before its run.json was written: still a folder of the demo's.
    remove_earlier_run(tmp_path, "demo")


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    remove_earlier_run(tmp_path / "runs" / "demo", "demo")
    assert (tmp_path / "runs" / "demo").is_dir()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError) as raised:
        remove_earlier_run(tmp_path, "demo")
    assert str(raised.value) == (
        "--run-dir must be a new folder or that of an earlier run named 'demo': what is in it "
        f"would be removed, got '{tmp_path}'. Choose another folder, or remove it yourself."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("record", [_record("alfworld_7b"), "{}", "[]", "["])
def test_another_run_is_left_alone(tmp_path: Path, record: str) -> None:
    (tmp_path / "run.json").write_text(record)
    with pytest.raises(ConfigError, match="earlier run named 'demo'"):
        remove_earlier_run(tmp_path, "demo")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("layout", "key"), [("--tp=3", "tensor_model"), ("--pp=3", "pipeline_model")]
)
def test_a_layout_that_does_not_fit_costs_neither_time_nor_the_run_before(
    tmp_path: Path, made: list[build.PolicyRecipe], layout: str, key: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run, policy = tmp_path / "run", tmp_path / "policy"
    run.mkdir()
    (run / "run.json").write_text(_record("demo"))
    assert main([layout, f"--run-dir={run}", f"--policy={policy}"]) == 2
    assert f"{key}_parallel_size must divide" in capsys.readouterr().err
    assert not made
    assert (run / "run.json").exists()


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
