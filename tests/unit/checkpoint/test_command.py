"""The command line, as far as it goes without Megatron."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_agent.checkpoint import command

pytestmark = pytest.mark.unit


def test_a_mistake_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convert_ckpt.py: ")
    assert line.endswith("must be a folder, got 'none'. Check the path.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layout", "DP2"], "--layout must name sizes of TP, PP and EP"),
        (["--shard-size", "big"], "--shard-size must be a number with a unit"),
        (["--to", "hf", "--layout", "TP2"], "--layout must be left out with --to hf"),
    ],
)
def test_options_are_checked_before_anything_heavy(
    hf_folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert command.main([str(hf_folder), "out", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_other_format_is_the_default(
    hf_folder: Path, megatron_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def run(request: command.Request, mode: command.Mode) -> int:
        seen.append(request.to)
        return 0

    monkeypatch.setattr(command, "run", run)
    assert command.main([str(hf_folder), "out"]) == 0
    assert command.main([str(megatron_folder), "out"]) == 0
    assert seen == ["megatron", "hf"]


def test_what_the_system_refuses_is_one_line_and_status_2(
    hf_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object) -> int:
        raise PermissionError(13, "Permission denied", "out.partial")

    monkeypatch.setattr(command, "run", refuse)
    assert command.main([str(hf_folder), "out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "convert_ckpt.py: [Errno 13] Permission denied: 'out.partial'"


def test_a_folder_that_is_only_checked_has_the_format_that_it_has(
    hf_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run", lambda request, mode: int(request.to != "hf"))
    assert command.main([str(hf_folder), str(hf_folder), "--verify-only"]) == 0


def test_ctrl_c_says_that_the_same_command_goes_on(
    hf_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupt)
    assert command.main([str(hf_folder), "out"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
