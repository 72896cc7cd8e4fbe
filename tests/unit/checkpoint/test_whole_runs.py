"""Conversions from the request to the verdict, and existing targets that are only checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_agent.checkpoint import command
from megatron_agent.checkpoint.command import Mode
from megatron_agent.checkpoint.request import Request

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("toy_model")]

Run = Callable[..., int]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def run(hf_folder: Path, tmp_path: Path, said: list[str]) -> Run:
    """Convert the folder, or check it, with the options of a mode; without running models."""

    def run(to: str = "hf", target: Path = tmp_path / "out", **options: bool) -> int:
        said.clear()
        request = Request(source=hf_folder, target=target, to=to, shard_bytes=150)  # type: ignore[arg-type]
        return command.run(request, Mode(logits=False, progress=False, **options), said.append)

    return run


def test_a_conversion_interrupted_during_the_verdict_passes_when_it_goes_on(
    run: Run, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(command, "compare", interrupt)
        run()
    assert run() == 0, said
