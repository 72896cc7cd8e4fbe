"""The blocks of the page work: its commands with a server that has the fields of its example, and
the example itself with stand-ins for OpenEnv's classes.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from megatron_agent import cli

pytestmark = pytest.mark.unit

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FASTER = {"check": ["--resets", "20", "--tasks", "1"]}


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [block[2] for block in found if block[1] == language]


def module(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of ``code``, to be imported by others until the test ends."""
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(code, f"{name}.py", "exec"), made.__dict__)  # noqa: S102 - a page of ours
    return made


def test_every_command_of_the_page_works(
    repo_root: Path, openenv_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repo_root))
    (commands,) = blocks(repo_root / "docs" / "environments" / "openenv.md", "bash")
    for line in commands.splitlines():
        words = shlex.split(line.replace("http://127.0.0.1:8000", f"{openenv_url}/hunt"))
        match words:
            case ["megatron-agent", "env", command, *arguments]:
                assert cli.main(["env", command, *arguments, *FASTER.get(command, [])]) == 0, line
            case ["megatron-agent", "train", *arguments]:
                arguments[-1] = f"actor_rollout_ref.model.path={tmp_path}/none"
                assert cli.main(["check", *arguments]) == cli.EXIT_USER_ERROR
            case _:
                pytest.fail(f"nobody runs {line!r}")


def test_the_server_of_the_page_plays_the_treasure_hunt(
    repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Observation(BaseModel):
        done: bool = False
        reward: float | None = None

    package = module("openenv.core.env_server", "", monkeypatch)
    monkeypatch.setitem(sys.modules, "openenv", ModuleType("openenv"))
    monkeypatch.setitem(sys.modules, "openenv.core", ModuleType("openenv.core"))
    package.Action = package.State = BaseModel
    package.Environment, package.Observation = object, Observation
    package.create_fastapi_app = None
    tutorial = blocks(repo_root / "docs" / "add-an-environment.md", "python")
    module("hunt_gym", tutorial[0], monkeypatch)
    (code,) = blocks(repo_root / "docs" / "environments" / "openenv.md", "python")
    page = module("hunt_server", code, monkeypatch)
    server = page.HuntServer()
    assert server.reset(seed=1).text == page.HuntServer().reset(seed=1).text
    seen = server.step(page.HuntAction(command="dance"))
    assert (seen.text, seen.reward, seen.done) == ("That is not possible.", 0.0, False)
    to_the_key = ["go left"] * 4 + ["take key", "go right"] * 4 + ["take key"]
    commands = [*to_the_key, *["open chest", "go left"] * 5]
    seen = [server.step(page.HuntAction(command=command)) for command in commands]
    assert seen[0].commands == ["go left", "go right", "take key", "open chest"]
    assert all(one.text.startswith("You are in the ") for one in seen)
    assert [one.reward for one in seen if one.done][:1] == [1.0]
