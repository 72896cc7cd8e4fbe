"""A folder counts as a checkpoint only when everything in it was written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_agent.backend import checkpoints
from megatron_agent.backend.checkpoints import COMPLETE, CheckpointKeeper
from megatron_agent.errors import ConfigError

pytestmark = pytest.mark.unit


class KilledError(Exception):
    """Stands for the process ending here."""


def write_files(keeper: CheckpointKeeper, step: int) -> Path:
    """What verl writes, without the mark."""
    folder = keeper.folder(step)
    (folder / "actor" / "dist_ckpt").mkdir(parents=True)
    (folder / "actor" / "dist_ckpt" / "__0_0.distcp").write_bytes(b"weights" * step)
    (folder / "data.pt").write_bytes(b"order")
    return folder


def write_complete(keeper: CheckpointKeeper, *steps: int) -> None:
    for step in steps:
        write_files(keeper, step)
        keeper.mark_complete(step)


@pytest.fixture
def keeper(tmp_path: Path) -> CheckpointKeeper:
    return CheckpointKeeper(root=tmp_path / "checkpoints", max_to_keep=2)


def test_a_run_without_a_checkpoint_folder_has_no_checkpoint(keeper):
    assert keeper.steps() == []
    assert keeper.latest_complete() is None
    keeper.discard_partial()
    keeper.prune()


def test_the_newest_complete_folder_is_the_one_to_load(keeper):
    write_complete(keeper, 2, 10, 9)
    write_files(keeper, 11)
    assert keeper.steps() == [2, 9, 10, 11]
    assert keeper.latest_complete() == keeper.folder(10)
    keeper.check_loadable(keeper.folder(10))


def test_partial_folders_are_discarded_and_nothing_else_is(keeper):
    write_complete(keeper, 1)
    write_files(keeper, 2)
    tracker = keeper.root / "latest_checkpointed_iteration.txt"
    tracker.write_text("2")
    other = keeper.root / "global_step_best"
    other.mkdir()
    keeper.discard_partial()
    assert keeper.steps() == [1]
    assert tracker.exists() and other.is_dir()


@pytest.mark.parametrize("num_synced", range(4))
def test_a_kill_while_the_mark_is_made_leaves_no_checkpoint(keeper, monkeypatch, num_synced):
    write_complete(keeper, 1)
    write_files(keeper, 2)
    before = checkpoints.sync_to_disk
    calls = []

    def killed(path: Path) -> None:
        if len(calls) == num_synced:
            raise KilledError
        calls.append(path)
        before(path)

    monkeypatch.setattr(checkpoints, "sync_to_disk", killed)
    # Two files of verl and the mark under another name; the last sync comes after the rename.
    if num_synced == 3:
        with pytest.raises(KilledError):
            keeper.mark_complete(2)
        assert keeper.latest_complete() == keeper.folder(2)
        keeper.check_loadable(keeper.folder(2))
        return
    with pytest.raises(KilledError):
        keeper.mark_complete(2)
    assert keeper.latest_complete() == keeper.folder(1)
    keeper.discard_partial()
    assert keeper.steps() == [1]


def test_every_file_is_synced_before_the_mark_appears(keeper, monkeypatch):
    folder = write_files(keeper, 1)
    synced: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        checkpoints,
        "sync_to_disk",
        lambda path: synced.append((path.name, (folder / COMPLETE).exists())),
    )
    keeper.mark_complete(1)
    assert synced == [
        ("__0_0.distcp", False),
        ("data.pt", False),
        (COMPLETE + ".partial", False),
        (folder.name, True),
    ]


def test_the_mark_names_every_file_and_its_size(keeper):
    write_complete(keeper, 3)
    mark = json.loads((keeper.folder(3) / COMPLETE).read_text())
    assert mark == {"step": 3, "bytes": {"actor/dist_ckpt/__0_0.distcp": 21, "data.pt": 5}}


def test_a_step_that_is_saved_again_can_be_loaded(keeper):
    write_complete(keeper, 1)
    (keeper.folder(1) / "data.pt").write_bytes(b"another order")
    (keeper.folder(1) / "critic.pt").write_bytes(b"new")
    keeper.mark_complete(1)
    keeper.check_loadable(keeper.folder(1))
    assert COMPLETE not in json.loads((keeper.folder(1) / COMPLETE).read_text())["bytes"]


def test_writing_over_a_complete_checkpoint_makes_it_partial_until_it_is_whole_again(keeper):
    write_complete(keeper, 1, 2)
    keeper.begin(2)
    assert keeper.latest_complete() == keeper.folder(1)
    keeper.begin(3)  # nothing there yet
    keeper.mark_complete(2)
    assert keeper.latest_complete() == keeper.folder(2)


def test_a_mark_that_a_kill_left_unfinished_is_not_one_of_the_files(keeper):
    (write_files(keeper, 1) / "COMPLETE.partial").write_text("{")
    keeper.mark_complete(1)
    keeper.check_loadable(keeper.folder(1))


def test_a_checkpoint_that_will_not_fit_is_not_begun(keeper, monkeypatch):
    keeper.check_room()  # nothing to judge by
    write_complete(keeper, 1)
    num_bytes = sum(json.loads((keeper.folder(1) / COMPLETE).read_text())["bytes"].values())
    free = SimpleNamespace(free=num_bytes)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: free)
    keeper.check_room()
    free.free -= 1
    with pytest.raises(ConfigError, match=r"must have room for a checkpoint of .* global_step_1"):
        keeper.check_room()
    assert keeper.is_complete(1)


def test_what_could_not_be_finished_gives_its_room_back(keeper):
    write_complete(keeper, 1)
    write_files(keeper, 2)
    for step in (1, 2, 3):
        keeper.discard(step)
    assert keeper.steps() == [1]


def test_pruning_keeps_the_newest_complete_ones_and_leaves_partial_ones_alone(keeper):
    write_complete(keeper, 1, 2, 3, 10)
    write_files(keeper, 11)
    keeper.prune()
    assert keeper.steps() == [3, 10, 11]


@pytest.mark.parametrize("max_to_keep", [0, -1, 1])
def test_pruning_never_removes_the_last_complete_one(tmp_path, max_to_keep):
    keeper = CheckpointKeeper(root=tmp_path, max_to_keep=max_to_keep)
    write_complete(keeper, 1, 2)
    write_files(keeper, 3)
    keeper.prune()
    keeper.prune()
    assert keeper.latest_complete() == keeper.folder(2)
    assert keeper.steps() == [2, 3]


def test_without_a_limit_all_are_kept(tmp_path):
    keeper = CheckpointKeeper(root=tmp_path)
    write_complete(keeper, 1, 2, 3)
    keeper.prune()
    assert keeper.steps() == [1, 2, 3]


def test_a_kill_while_pruning_leaves_a_folder_that_says_it_is_not_whole(keeper, monkeypatch):
    write_complete(keeper, 1, 2, 3)

    def killed(folder: Path) -> None:
        (folder / "data.pt").unlink()
        raise KilledError

    monkeypatch.setattr(checkpoints.shutil, "rmtree", killed)
    with pytest.raises(KilledError):
        keeper.prune()
    monkeypatch.undo()
    assert not keeper.is_complete(1)
    keeper.discard_partial()
    assert keeper.steps() == [2, 3]


def test_a_checkpoint_without_the_mark_is_refused(keeper):
    folder = write_files(keeper, 1)
    with pytest.raises(ConfigError) as raised:
        keeper.check_loadable(folder)
    assert str(raised.value) == (
        f"trainer.resume_from_path must be a folder with a COMPLETE file, got '{folder}'. "
        "Use trainer.resume_mode=auto, which takes the newest complete one."
    )


def test_a_checkpoint_that_does_not_exist_is_refused(keeper):
    with pytest.raises(ConfigError, match="must be a folder with a COMPLETE file"):
        keeper.check_loadable(keeper.folder(5))


def test_a_file_of_another_size_is_refused_by_name(keeper):
    write_complete(keeper, 1)
    (keeper.folder(1) / "actor" / "dist_ckpt" / "__0_0.distcp").write_bytes(b"wei")
    with pytest.raises(ConfigError) as raised:
        keeper.check_loadable(str(keeper.folder(1)))
    assert str(raised.value) == (
        "trainer.resume_from_path must hold actor/dist_ckpt/__0_0.distcp with 7 bytes, "
        f"got '{keeper.folder(1)} (3 bytes)'. Remove global_step_1, or move it out of "
        f"{keeper.root}, and start with trainer.resume_mode=auto: no earlier one is left, so the "
        "run begins anew."
    )


def refusal(keeper: CheckpointKeeper, mode: str = "auto", path: Path | None = None) -> str:
    before = sorted(keeper.root.rglob("*"))
    with pytest.raises(ConfigError) as raised:
        keeper.choose(mode, None if path is None else str(path))
    assert sorted(keeper.root.rglob("*")) == before
    return str(raised.value)


def test_a_damaged_newest_checkpoint_names_the_way_on_and_that_way_works(keeper):
    write_complete(keeper, 1, 2, 3)
    (keeper.folder(3) / "data.pt").write_bytes(b"ord")
    assert refusal(keeper) == (
        "trainer.default_local_dir must hold global_step_3/data.pt with 5 bytes, got "
        f"'{keeper.folder(3)} (3 bytes)'. Remove global_step_3, or move it out of {keeper.root}, "
        "and start the same command again: it goes on from global_step_2."
    )
    shutil.rmtree(keeper.folder(3))
    assert keeper.choose("auto", None) == keeper.folder(2)


def test_of_several_damaged_checkpoints_all_are_named(keeper, tmp_path):
    write_complete(keeper, 1, 2, 3)
    for step in (2, 3):
        (keeper.folder(step) / "data.pt").unlink()
    text = refusal(keeper)
    assert "Remove global_step_3 and global_step_2, or move them out of" in text
    assert text.endswith("start the same command again: it goes on from global_step_1.")
    for step in (2, 3):
        keeper.folder(step).rename(tmp_path / f"global_step_{step}")
    assert keeper.choose("auto", None) == keeper.folder(1)


def test_where_only_a_damaged_checkpoint_is_left_the_run_begins_anew(keeper):
    write_complete(keeper, 1)
    (keeper.folder(1) / "data.pt").unlink()
    assert refusal(keeper).endswith("again: no earlier one is left, so the run begins anew.")
    shutil.rmtree(keeper.folder(1))
    assert keeper.choose("auto", None) is None


def test_a_damaged_checkpoint_of_a_run_that_began_from_another(keeper, tmp_path):
    other = CheckpointKeeper(root=tmp_path / "other")
    write_complete(other, 9)
    write_complete(keeper, 10)
    (keeper.folder(10) / "data.pt").unlink()
    text = refusal(keeper, "resume_path", other.folder(9))
    assert text.startswith("trainer.default_local_dir must hold global_step_10/data.pt")
    assert text.endswith(f"start the same command again: it goes on from {other.folder(9)}.")
    shutil.rmtree(keeper.folder(10))
    assert keeper.choose("resume_path", str(other.folder(9))) == other.folder(9)
    (other.folder(9) / "data.pt").unlink()
    text = refusal(keeper, "resume_path", other.folder(9))
    assert text.startswith("trainer.resume_from_path must hold data.pt with 5 bytes")
    assert text.endswith("Choose another checkpoint of that run.")


def test_a_damaged_checkpoint_of_this_run_that_was_named(keeper):
    write_complete(keeper, 1, 2)
    (keeper.folder(2) / "data.pt").unlink()
    text = refusal(keeper, "resume_path", keeper.folder(2))
    assert text.startswith("trainer.resume_from_path must hold data.pt with 5 bytes")
    assert text.endswith("start with trainer.resume_mode=auto: it goes on from global_step_1.")


def test_a_file_that_is_gone_is_refused_by_name(keeper):
    write_complete(keeper, 1)
    (keeper.folder(1) / "data.pt").unlink()
    with pytest.raises(ConfigError, match=r"must hold data\.pt with 5 bytes, got .*None bytes"):
        keeper.check_loadable(keeper.folder(1))


def test_auto_goes_on_from_the_newest_and_removes_what_is_half_written(keeper):
    assert keeper.choose("auto", None) is None
    write_complete(keeper, 1, 2)
    write_files(keeper, 3)
    assert keeper.choose("auto", None) == keeper.folder(2)
    assert keeper.steps() == [1, 2]


def test_a_fresh_start_beside_checkpoints_is_refused(keeper):
    assert keeper.choose("disable", None) is None
    write_complete(keeper, 7)
    with pytest.raises(ConfigError) as raised:
        keeper.choose("disable", None)
    assert str(raised.value) == (
        "trainer.resume_mode must be auto in a folder that holds checkpoints (global_step_7), got "
        "'disable'. Start afresh in another folder (run.name=...), or remove the checkpoints."
    )


@pytest.mark.parametrize("path", [None, "", "runs/other", "runs/other/global_step_x"])
def test_a_path_that_is_no_checkpoint_is_refused(keeper, path):
    rule = r"must be a folder global_step_<k> when trainer\.resume_mode=resume_path"
    with pytest.raises(ConfigError, match=rule):
        keeper.choose("resume_path", path)


def test_a_path_may_be_relative_and_end_with_a_slash(keeper, monkeypatch):
    write_complete(keeper, 3)
    monkeypatch.chdir(keeper.root)
    assert keeper.choose("resume_path", "global_step_3/") == keeper.folder(3)


def test_a_run_started_from_another_goes_on_from_its_own(keeper, tmp_path):
    other = CheckpointKeeper(root=tmp_path / "other")
    write_complete(other, 9)
    assert keeper.choose("resume_path", str(other.folder(9))) == other.folder(9)
    write_complete(keeper, 10)
    assert keeper.choose("resume_path", str(other.folder(9))) == keeper.folder(10)


def test_the_folder_comes_from_verls_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = {"default_local_dir": "run/checkpoints", "max_ckpt_to_keep": 3}
    config = SimpleNamespace(trainer=AttributeDict(trainer))
    keeper = CheckpointKeeper.from_config(config)
    assert keeper == CheckpointKeeper(root=tmp_path / "run" / "checkpoints", max_to_keep=3)


class AttributeDict(dict):
    """A section of a configuration, as far as it is needed here."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize(
    "content",
    [b"", b'{"step": 2, "by', b"{}", b"[]", b'{"bytes": 3}', b'{"bytes": {"a": "x"}}', b"\xff"],
)
def test_a_mark_that_cannot_be_read_makes_no_checkpoint_and_costs_no_data(keeper, caplog, content):
    write_complete(keeper, 1, 2)
    (keeper.folder(2) / COMPLETE).write_bytes(content)
    assert not keeper.is_complete(2)
    assert keeper.choose("auto", None) == keeper.folder(1)
    assert "global_step_2 is passed over: its COMPLETE file cannot be read." in caplog.text
    keeper.check_room()
    keeper.discard(2)
    keeper.prune()
    assert keeper.steps() == [1, 2]
    with pytest.raises(ConfigError, match="must hold a COMPLETE file that can be read, got"):
        keeper.check_loadable(keeper.folder(2))
    # The run comes to that step again.
    keeper.mark_complete(2)
    assert keeper.latest_complete() == keeper.folder(2)
