"""The command line: exit codes, one clean message, and what each command prints."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_agent import cli
from megatron_agent.tasks import read_tasks

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_misspelt_environment_is_named_within_ten_seconds(tmp_path: Path) -> None:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "megatron_agent.train", "env.env_name=frozenlak"],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "got 'frozenlak'. Did you mean 'frozenlake'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert time.monotonic() - started < 10


def test_train_opens_the_folder_makes_tasks_and_hands_over(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[Any, Path]] = []

    def run(config: Any, run_dir: Path) -> int:
        launched.append((config, run_dir))
        return 7

    launch = types.ModuleType("megatron_agent.backend.launch")
    launch.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, launch.__name__, launch)
    monkeypatch.setattr("megatron_agent.backend.launch", launch, raising=False)
    run_dir = tmp_path / "run"
    overrides = [f"actor_rollout_ref.model.path={model_folder}", f"run.dir={run_dir}"]
    sizes = ["env.tasks.num_train=8", "env.tasks.num_eval=2"]
    # Options may stand between overrides.
    code = cli.main(["train", *overrides, "--config-name", "grpo", *sizes])
    assert code == 7
    assert [path for _, path in launched] == [run_dir]
    assert launched[0][0].algorithm.adv_estimator == "grpo"
    assert (run_dir / "run.json").is_file()
    assert len(read_tasks(run_dir / "tasks" / "train.parquet")) == 8
    assert len(read_tasks(run_dir / "tasks" / "eval.parquet")) == 2
    written = (run_dir / "tasks" / "train.parquet").stat().st_mtime_ns
    assert cli.main(["train", *overrides, "--config-name", "grpo", *sizes]) == 7
    assert (run_dir / "tasks" / "train.parquet").stat().st_mtime_ns == written


def test_check_says_what_an_iteration_is(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    assert cli.main(["check", f"actor_rollout_ref.model.path={model_folder}", *sizes]) == 0
    assert "8 groups of 8 episodes and 2 optimizer step(s)" in capsys.readouterr().out


def test_check_lists_problems_and_exits_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "algorithm.gamma=-1", "gamma=1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("megatron-agent: The configuration has 3 problems:\n  1. gamma is not")
    assert "algorithm.gamma must be in [0, 1], got -1. Use 0.95." in error


def test_show_prints_yaml_that_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "experiment=demo"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["run"] == {"name": "demo", "dir": "runs/demo"}


def test_tasks_writes_both_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ["--num-train", "3", "--num-eval", "2", "--seed", "1", "--option", "size=5"]
    assert cli.main(["tasks", "--env", "frozenlake", "--out", str(tmp_path), *numbers]) == 0
    assert "train.parquet: 3 tasks" in capsys.readouterr().out
    tasks = read_tasks(tmp_path / "eval.parquet")
    assert [(task.split, task.options["size"]) for task in tasks] == [("eval", 5), ("eval", 5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "frozenlak"], "--env: no environment is named 'frozenlak'. Did you mean"),
        (["--env", "taxi", "--num-train", "0"], "--num-train must be >= 1, got 0. Use 1 or more."),
        (["--env", "taxi", "--num-eval", "0"], "--num-eval must be >= 1, got 0. Use 1 or more."),
        (["--env", "taxi", "--num-eval", "-3"], "--num-eval must be >= 1, got -3."),
        (["--env", "taxi", "--seed", "-1"], "--seed must be >= 0, got -1. Use 0 or more."),
        (
            ["--env", "frozenlake", "--num-train", "2", "--option", "p=1.0"],
            "--num-eval: environment 'frozenlake' with options {'p': 1.0} has too few",
        ),
        (["--env", "frozenlake", "--option", "size"], "--option must be NAME=VALUE, got 'size'"),
        (["--env", "frozenlake", "--option", "size=["], "--option must have a value in YAML"),
        (["--env", "frozenlake", "--option", "size=99"], "--option: option 'size'"),
    ],
)
def test_a_mistake_in_tasks_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["tasks", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_tasks_cannot_be_written_below_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    sizes = ["--num-train", "1", "--num-eval", "1"]
    out = str(tmp_path / "file")
    assert cli.main(["tasks", "--env", "frozenlake", "--out", out, *sizes]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"megatron-agent: {out}/train.parquet: must be a file that can be")
    assert error.count("\n") == 1


def test_env_list_names_environments_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "list"]) == 0
    out = capsys.readouterr().out
    assert "frozenlake: " in out
    assert "  size = 4: an integer from 4 to 8" in out


def test_env_list_goes_on_when_one_cannot_be_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from envs import registry

    def fail(name: str) -> None:
        raise registry.EnvLoadError(f"{name} needs gymnasium")

    monkeypatch.setattr(registry, "load_env", fail)
    assert cli.main(["env", "list"]) == 0
    assert (
        "frozenlake: cannot be loaded here (frozenlake needs gymnasium)" in capsys.readouterr().out
    )


def test_version_names_the_stack(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    out = capsys.readouterr().out
    assert "verl " in out
    assert "NVIDIA Apex" in out


@pytest.mark.parametrize("arguments", [["train", "--dry"], ["version", "x=1"]])
def test_an_unknown_argument_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert "unrecognized arguments" in capsys.readouterr().err


def test_errors_that_are_not_ours_propagate(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("megatron_agent.provenance.versions", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["version"])


def test_ctrl_c_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("megatron_agent.provenance.versions", interrupt)
    assert cli.main(["version"]) == 130
    assert capsys.readouterr().err == "megatron-agent: interrupted.\n"


def test_a_retrieval_server_says_what_is_wrong_with_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.jsonl"
    assert cli.main(["retrieval", "serve", "--corpus", str(missing)]) == 2
    assert capsys.readouterr().err == (
        f"retrieval server: environment 'search': there is no file {missing}.\n"
    )
    with pytest.raises(SystemExit, match="2"):
        cli.main(["retrieval", "serve", "--prot", "1"])
    assert "megatron-agent retrieval serve: error" in capsys.readouterr().err
