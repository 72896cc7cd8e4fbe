"""Conversions from the request to the verdict, and existing targets that are only checked."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_agent.checkpoint import command
from megatron_agent.checkpoint.command import Mode
from megatron_agent.checkpoint.request import Request
from megatron_agent.errors import CheckpointError

pytestmark = pytest.mark.unit

Run = Callable[..., int]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def run(toy_model: None, hf_folder: Path, tmp_path: Path, said: list[str]) -> Run:
    """Convert the folder, or check it, with the options of a mode; without running models."""

    def run(to: str = "hf", target: Path = tmp_path / "out", **options: bool) -> int:
        said.clear()
        request = Request(source=hf_folder, target=target, to=to, shard_bytes=150)  # type: ignore[arg-type]
        return command.run(request, Mode(logits=False, progress=False, **options), said.append)

    return run


@pytest.fixture
def interrupted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a conversion left that was interrupted during its verdict."""

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(command, "compare", interrupt)
        run()
    return tmp_path / "out.partial"


@pytest.mark.usefixtures("interrupted")
def test_a_conversion_interrupted_during_the_verdict_passes_when_it_goes_on(
    run: Run, said: list[str]
) -> None:
    assert run() == 0, said


def test_a_batch_that_was_damaged_fails_with_the_remedy(
    run: Run, said: list[str], tmp_path: Path, interrupted: Path
) -> None:
    shard = interrupted / "model-00002-of-00003.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert run() == 1
    assert said[-1].endswith(f"stays in {interrupted}: remove it to convert anew")
    shutil.rmtree(interrupted)
    assert run() == 0


def test_a_source_without_a_tokenizer_is_told(run: Run, said: list[str], hf_folder: Path) -> None:
    (hf_folder / "tokenizer.json").unlink()
    for to in ("hf", "megatron"):
        assert run(to, hf_folder.with_name(to + "-out")) == 0
        assert "files    config; no tokenizer" in said[0]
        assert re.search("warn  files beside the weights +config; no tokenizer", said[1])


def test_a_folder_that_lost_its_configuration_and_manifest_fails(
    run: Run, said: list[str], tmp_path: Path
) -> None:
    assert run() == 0
    (tmp_path / "out" / "tokenizer.json").unlink()
    assert run(verify_only=True) == 1
    assert "tokenizer.json is missing" in said[1]
    for name in ("config.json", "conversion.json"):
        (tmp_path / "out" / name).unlink()
    assert run(verify_only=True) == 1
    assert "warn  checksums" in said[1]
    assert "FAIL  files beside the weights" in said[1]


def test_a_check_alone_says_nothing_of_writing(run: Run, said: list[str]) -> None:
    assert run() == 0
    assert " in 3 batches of files" in said[0]
    assert run(verify_only=True) == 0
    assert "writes" not in said[0]
    assert "batches" not in said[0]


@pytest.mark.parametrize(
    ("place", "rule"),
    [
        ("exists", "must not exist"),
        ("hf/inside", "must not lie in the source"),
        ("hf/config.json/below/a/file", "must not lie in the source"),
        ("file/below", "must be in a folder that can be written to"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_refuses_what_the_run_does(
    run: Run, tmp_path: Path, place: str, rule: str, dry_run: bool
) -> None:
    (tmp_path / "exists").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=rule):
        run(target=tmp_path / place, dry_run=dry_run)
    assert not (tmp_path / "hf" / "inside.partial").exists()


def test_a_dry_run_looks_at_the_disk_and_makes_no_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(target=tmp_path / "new" / "folder" / "out", dry_run=True) == 0
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(CheckpointError, match="must have space on its disk"):
        run(dry_run=True)
