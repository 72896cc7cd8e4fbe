"""run.json: what it holds, that it is whole, and when a folder is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from megatron_agent import atomic_file, provenance
from megatron_agent.config import ConfigProblemsError, compose_config
from megatron_agent.errors import ConfigError
from megatron_agent.ledger import Admitted, Attempt, Ledger
from megatron_agent.run_folder import current_attempt, prepare_run, write_json

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose_config(["experiment=demo"])


@pytest.fixture
def config(composed: DictConfig) -> DictConfig:
    return composed.copy()


def test_the_first_start_writes_everything_a_reader_needs(
    tmp_path: Path, config: DictConfig
) -> None:
    run = prepare_run(tmp_path / "demo", config, ["megatron-agent", "train", "experiment=demo"])
    assert (run.attempt, run.is_resumed) == (1, False)
    record = json.loads((tmp_path / "demo" / "run.json").read_text())
    (attempt,) = record["attempts"]
    assert record["name"] == "demo"
    assert attempt["command"] == ["megatron-agent", "train", "experiment=demo"]
    assert attempt["config"]["env"]["env_name"] == "frozenlake"
    assert attempt["seeds"]["env.tasks.seed"] == 0
    assert {"python", "torch", "verl", "megatron-core", "sglang", "ray"} <= set(attempt["versions"])
    assert set(attempt["optional_packages"]) == {"NVIDIA Apex", "Transformer Engine"}


def test_a_resume_appends_an_attempt(tmp_path: Path, config: DictConfig) -> None:
    assert current_attempt(tmp_path) == 0
    prepare_run(tmp_path, config, ["first"])
    config.trainer.total_training_steps = 99  # may change: a run may go on for longer
    run = prepare_run(tmp_path, config, ["second"])
    assert (run.attempt, run.is_resumed) == (2, True)
    assert current_attempt(tmp_path) == 2
    attempts = json.loads((tmp_path / "run.json").read_text())["attempts"]
    assert [attempt["command"] for attempt in attempts] == [["first"], ["second"]]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.model.path", "other/model"),
        ("env.seed", 5),
        ("env.options.size", 8),
        ("data.train_batch_size", 4),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size", 1),
    ],
)
def test_another_run_in_the_same_folder_is_refused(
    tmp_path: Path, config: DictConfig, key: str, value: object
) -> None:
    prepare_run(tmp_path, config, [])
    (tmp_path / "checkpoints" / "global_step_1").mkdir(parents=True)
    before = (tmp_path / "run.json").read_text()
    OmegaConf.update(config, key, value)
    pattern = r"must stay .* with which the run in .* was started, got .*run\.name="
    with pytest.raises(ConfigProblemsError, match=pattern) as caught:
        prepare_run(tmp_path, config, [])
    assert key.startswith(caught.value.key)
    assert (tmp_path / "run.json").read_text() == before


def test_a_start_that_admitted_no_task_decides_nothing(tmp_path: Path, config: DictConfig) -> None:
    was, config.run.dir = config.run.dir, str(tmp_path)
    for key in ("train_files", "val_files"):
        config.data[key] = config.data[key].replace(was, str(tmp_path))
    prepare_run(tmp_path, config, [])
    (tmp_path / "tasks").mkdir()
    for name in ("train", "eval", "mine"):
        (tmp_path / "tasks" / f"{name}.parquet").touch()
    ledger = Ledger(tmp_path)
    ledger.append(Attempt(attempt=1, mode="sync", resumed_step=0, tasks_per_epoch=2048))
    config.env.tasks.num_train = 100
    assert prepare_run(tmp_path, config, []).attempt == 2
    # Generated lists are made anew; what else lies there is somebody's.
    assert [path.name for path in (tmp_path / "tasks").iterdir()] == ["mine.parquet"]

    # What counts afterwards is the configuration of the start that did.
    ledger.append(Admitted(step=1, groups={"a": "task 0"}))
    assert prepare_run(tmp_path, config, []).attempt == 3
    config.env.tasks.num_train = 2048
    with pytest.raises(ConfigProblemsError, match=r"must stay .*100"):
        prepare_run(tmp_path, config, [])


def test_the_layout_may_change_when_optimizer_states_can_be_cut_anew(
    tmp_path: Path, config: DictConfig
) -> None:
    config.actor_rollout_ref.actor.megatron.dist_ckpt_optim_fully_reshardable = True
    prepare_run(tmp_path, config, [])
    (tmp_path / "checkpoints" / "global_step_1").mkdir(parents=True)
    config.actor_rollout_ref.actor.megatron.tensor_model_parallel_size = 1
    assert prepare_run(tmp_path, config, []).attempt == 2


def test_an_evaluation_may_have_another_layout_and_decides_none(
    tmp_path: Path, config: DictConfig
) -> None:
    prepare_run(tmp_path, config, [])
    (tmp_path / "checkpoints" / "global_step_1").mkdir(parents=True)
    evaluation = config.copy()
    evaluation.trainer.nnodes = 3
    evaluation.trainer.val_only = True
    with pytest.raises(ConfigProblemsError, match=r"trainer\.nnodes must stay 1"):
        prepare_run(tmp_path, evaluation, [])  # would read optimizer states
    evaluation.actor_rollout_ref.actor.checkpoint.load_contents = ["model"]
    assert prepare_run(tmp_path, evaluation, []).attempt == 2
    assert prepare_run(tmp_path, config, []).attempt == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"run\.dir must hold a readable run\.json \(.*\), got .* Move the folder away"),
        ("[]", r"run\.dir must hold a run\.json of format 1"),
        ('{"format": 2, "attempts": []}', r"run\.dir must hold a run\.json of format 1"),
        ('{"format": 1, "attempts": [1]}', r"run\.dir must hold a run\.json of format 1"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(
    tmp_path: Path, config: DictConfig, text: str, message: str
) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        prepare_run(tmp_path, config, [])


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "run.json", {"old": 1})

    def no_space(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(atomic_file.os, "fsync", no_space)
    with pytest.raises(OSError, match="no space left"):
        write_json(tmp_path / "run.json", {"new": 2})
    assert json.loads((tmp_path / "run.json").read_text()) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("part", "state"), [("multi_tensor_apply", "found"), ("lib", "another package of that name")]
)
def test_nvidia_apex_is_told_from_its_namesake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, state: str
) -> None:
    (tmp_path / "apex" / part).mkdir(parents=True)
    (tmp_path / "apex" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(provenance.importlib.util.sys.modules, "apex", raising=False)
    assert provenance.optional_packages()["NVIDIA Apex"] == state
    assert f"NVIDIA Apex {state}" in provenance.optional_packages_line()


def test_what_is_not_installed_is_said_so() -> None:
    assert provenance.distribution_version("no-such-distribution") == "not installed"


def test_no_commit_is_recorded_outside_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_REPOSITORY", tmp_path)
    assert provenance.git_commit() is None


def test_a_moved_folder_is_still_the_same_run(tmp_path: Path, config: DictConfig) -> None:
    assert config.data.train_files.startswith(config.run.dir)
    prepare_run(tmp_path / "run", config, [])
    (tmp_path / "run" / "checkpoints" / "global_step_1").mkdir(parents=True)
    (tmp_path / "run").rename(tmp_path / "moved")
    before, after = config.run.dir, str(tmp_path / "moved")
    for key in ("train_files", "val_files"):
        config.data[key] = config.data[key].replace(before, after)
    config.run.dir = after
    assert prepare_run(tmp_path / "moved", config, []).attempt == 2
    config.data.train_files = "elsewhere/tasks/train.parquet"
    with pytest.raises(ConfigProblemsError, match=r"data\.train_files must stay"):
        prepare_run(tmp_path / "moved", config, [])
