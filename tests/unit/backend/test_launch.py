"""The start of a run up to Ray: what it asks of the run's folder, and where a stop leaves it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from omegaconf import OmegaConf

from megatron_agent.backend.checkpoints import CheckpointKeeper
from megatron_agent.backend.stop import EXIT_REQUEUE, STOP_SIGNALS, StopSwitch
from megatron_agent.errors import ConfigError
from megatron_agent.ledger import (
    Admitted,
    Attempt,
    Checkpoint,
    GroupOutcome,
    Ledger,
    LedgerError,
    Trained,
    check_ledger,
    read_ledger,
)
from megatron_agent.run_folder import write_json

pytestmark = pytest.mark.unit


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`launch` without its environment variables, and without Ray."""
    from megatron_agent.backend import launch

    before = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    monkeypatch.setattr(launch, "set_environment", lambda *_: None)
    monkeypatch.setattr(launch, "split_config", lambda config: (config, None))
    monkeypatch.setattr(launch, "prepare_for_verl", lambda _: "agent_sync")
    for name in ("import_ahead", "start_ray"):
        monkeypatch.setattr(launch, name, lambda *_: None)
    monkeypatch.setattr(launch, "_train", lambda *_: 0)
    yield launch
    StopSwitch.release()
    for signum, handler in before.items():
        signal.signal(signum, handler)


def config_of(run_dir: Path, **trainer: Any) -> Any:
    tree = {
        "default_local_dir": str(run_dir / "checkpoints"),
        "resume_mode": "auto",
        "resume_from_path": None,
        "save_freq": -1,
        **trainer,
    }
    return OmegaConf.create({"trainer": tree, "cluster": {}, "ray_kwargs": {"ray_init": {}}})


def begin_attempts(run_dir: Path, number: int) -> None:
    write_json(run_dir / "run.json", {"format": 1, "attempts": [{"config": {}}] * number})


def write_checkpoint(run_dir: Path, step: int) -> Path:
    keeper = CheckpointKeeper(root=run_dir / "checkpoints")
    keeper.folder(step).mkdir(parents=True, exist_ok=True)
    keeper.mark_complete(step)
    return keeper.folder(step)


@pytest.mark.parametrize("where", ["before Ray", "while Ray starts"])
def test_a_stop_before_the_first_step_leaves_with_its_code(launch, tmp_path, monkeypatch, where):
    calls = []

    def ask(*_: object) -> None:
        calls.append("asked")
        signal.raise_signal(signal.SIGUSR1)

    StopSwitch.remember()
    monkeypatch.setattr(launch, "start_ray", lambda *_: calls.append("ray"))
    monkeypatch.setattr(launch, "_train", lambda *_: calls.append("train"))
    monkeypatch.setattr(launch, "set_environment" if where == "before Ray" else "start_ray", ask)
    begin_attempts(tmp_path, 1)
    assert launch.run(config_of(tmp_path), tmp_path) == EXIT_REQUEUE
    assert calls == ["asked"]


def test_a_later_attempt_goes_on_from_a_checkpoint_only_with_its_ledger(launch, tmp_path):
    write_checkpoint(tmp_path, 3)
    # A checkpoint that somebody put into a new folder.
    begin_attempts(tmp_path, 1)
    assert launch.run(config_of(tmp_path), tmp_path) == 0
    begin_attempts(tmp_path, 2)
    with pytest.raises(LedgerError, match="must tell how the run came to step 3, got none"):
        launch.run(config_of(tmp_path), tmp_path)


def test_without_its_damaged_checkpoint_a_run_goes_on_from_the_one_before(launch, tmp_path):
    ledger = Ledger(tmp_path)
    ledger.append(Attempt(attempt=1, resumed_step=0, mode="sync", tasks_per_epoch=9))
    for step in (1, 2):
        group = f"g{step}"
        outcome = GroupOutcome(
            group=group, task_id=f"t{step}", return_mean=1.0, num_success=1, num_failed=0
        )
        ledger.append(Admitted(step=step, groups={group: outcome.task_id}))
        ledger.append(Trained(step=step, groups=(outcome,), removed=()))
        ledger.append(Checkpoint(step=step))
        folder = CheckpointKeeper(root=tmp_path / "checkpoints").folder(step)
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"1234")
        write_checkpoint(tmp_path, step)
    begin_attempts(tmp_path, 2)
    (folder / "weights").write_bytes(b"12")
    with pytest.raises(ConfigError, match=r"same command again: it goes on from global_step_1\.$"):
        launch.run(config_of(tmp_path), tmp_path)
    shutil.rmtree(folder)
    assert launch.run(config_of(tmp_path), tmp_path) == 0
    report = check_ledger(
        [
            *read_ledger(ledger.path),
            Attempt(attempt=2, resumed_step=1, mode="sync", tasks_per_epoch=9),
        ]
    )
    assert report.problems == ()


def test_a_run_may_begin_from_a_checkpoint_of_another_run(launch, tmp_path):
    foreign = write_checkpoint(tmp_path / "other", 7)
    begin_attempts(tmp_path, 2)
    config = config_of(tmp_path, resume_mode="resume_path", resume_from_path=str(foreign))
    assert launch.run(config, tmp_path) == 0
