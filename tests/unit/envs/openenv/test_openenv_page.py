"""The commands of the page work with a server that has the fields of the page's example."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from megatron_agent import cli

pytestmark = pytest.mark.unit

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FASTER = {"check": ["--resets", "20", "--tasks", "1"]}


def test_every_block_of_the_page_works(
    repo_root: Path, openenv_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repo_root))
    page = (repo_root / "docs" / "environments" / "openenv.md").read_text(encoding="utf-8")
    blocks = [block.groups() for block in BLOCK.finditer(page)]
    assert [language for language, _ in blocks] == ["bash", "python"]
    compile(blocks[1][1], "hunt_server.py", "exec")  # its package is the server's, not ours
    for line in blocks[0][1].splitlines():
        words = shlex.split(line.replace("http://127.0.0.1:8000", f"{openenv_url}/hunt"))
        match words:
            case ["megatron-agent", "env", command, *arguments]:
                assert cli.main(["env", command, *arguments, *FASTER.get(command, [])]) == 0, line
            case ["megatron-agent", "train", *arguments]:
                arguments[-1] = f"actor_rollout_ref.model.path={tmp_path}/none"
                assert cli.main(["check", *arguments]) == cli.EXIT_USER_ERROR
            case _:
                pytest.fail(f"nobody runs {line!r}")
    assert "hunt_server" not in sys.modules
