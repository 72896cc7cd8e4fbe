"""Every code block of the pages about environments is run, in the order of the page."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from envs.prompt_template import PromptTemplate
from envs.registry import load_env
from megatron_agent import cli

pytestmark = pytest.mark.unit

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"`(\w+\.py)`")
# A page must not take the test command's time: fewer resets say as much about a toy.
FASTER = {"check": ["--resets", "20", "--tasks", "1"]}


class Answers(BaseHTTPRequestHandler):
    """A chat server that always says the same."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = {"choices": [{"message": {"content": "<think></think><action>left</action>"}}]}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def chat_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def desk(
    tmp_path: Path, repo_root: Path, monkeypatch: pytest.MonkeyPatch, chat_address: str
) -> Iterator[Path]:
    """An empty folder to work in, on the path as the page says."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(repo_root)]))
    monkeypatch.setattr("builtins.input", lambda prompt: "quit")
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    load_env.__globals__["_load_path"].cache_clear()


@pytest.mark.parametrize("page", ["environments.md", "add-an-environment.md"])
def test_every_block_of_the_page_works(
    page: str, desk: Path, repo_root: Path, chat_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (repo_root / "docs" / page).read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```") // 2 > 3
    for number, block in enumerate(blocks):
        language, code = block.groups()
        before = text[: block.start()].rstrip().rsplit("\n", 1)[-1]
        after = text[block.end() :].lstrip().split("\n", 1)[0]
        if language == "python":
            run_python(code, desk, before, after)
        elif language == "bash":
            for line in code.splitlines():
                run_command(line, desk, repo_root, chat_address)
        else:
            assert language == "text", number
            PromptTemplate(code, place=f"block {number} of {page}")
    assert "Traceback" not in capsys.readouterr().err


def run_python(code: str, desk: Path, before: str, after: str) -> None:
    """Write a file where the page names one, else execute the block."""
    named = FILE_NAME.search(before) or (FILE_NAME.search(after) if "Saved as" in after else None)
    if named is None:
        subprocess.run([sys.executable, "-c", code], cwd=desk, check=True, timeout=60)
        return
    (desk / named[1]).write_text(code, encoding="utf-8")
    if named[1].startswith("test_"):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", named[1]]
        subprocess.run(command, cwd=desk, check=True, timeout=120, stdout=subprocess.DEVNULL)


def run_command(line: str, desk: Path, repo_root: Path, chat_address: str) -> None:
    """Run one line; training is checked, not started."""
    words = shlex.split(line.replace("127.0.0.1:30000", chat_address))
    match words:
        case ["export", "PYTHONPATH=."]:
            return  # the fixture has done it
        case ["python", "tools/make_policy.py", *arguments]:
            assert (repo_root / words[1]).is_file()
            assert load_env(arguments[arguments.index("--env") + 1]).expert is not None
            make_stub_model(desk / arguments[arguments.index("--out") + 1])
        case ["megatron-agent", "train", *arguments]:
            assert cli.main(["check", *arguments]) == 0, line
        case ["megatron-agent", "env", command, *arguments]:
            assert cli.main(["env", command, *arguments, *FASTER.get(command, [])]) == 0, line
        case _:
            pytest.fail(f"nobody runs {line!r}")


def make_stub_model(folder: Path) -> None:
    """As much of a model folder as the check of a configuration looks at."""
    folder.mkdir(parents=True)
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps({**shape, "max_position_embeddings": 1024}))
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").write_text("{}")
