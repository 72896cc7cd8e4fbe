"""``tools/make_policy.py``: bad input is one line and status 2, before torch is imported."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from megatron_agent.tasks import EnvTask, write_tasks

pytestmark = pytest.mark.unit

PROGRAM = Path(__file__).parents[3] / "tools" / "make_policy.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_policy", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--heads 3", r"--heads must divide hidden \(128\), got 3\. Use 1, 2, 4"),
        ("--kv-heads 3", r"--kv-heads must divide heads \(4\), got 3\. Use 1, 2 or 4\."),
        ("--arch gpt9", "--arch must be one of qwen2, qwen3, llama, got 'gpt9'"),
        ("--env frozenlak", "--env: no environment is named 'frozenlak'.* 'frozenlake'"),
        ("--env frozenlake sokobann", "--env: no environment is named 'sokobann'"),
        ("--env-option size", "--env-option must be KEY=VALUE with a JSON value, got 'size'"),
        ("--env-option size=99", r"--env-option must fit .*'size'.* from 4 to 8"),
        ("--lr 2", r"--lr must be in \(0, 1\), got 2.0"),
        ("--vocab-size 700", "--vocab-size must be a multiple of 64 and at least 320, got 700"),
        ("--num-threads 0", "--num-threads must be at least 1, got 0"),
        ("--memory windw", "--memory must be one of .* got 'windw'. Did you mean 'window'"),
        ("--warm-start --prompt-file none.txt", "--prompt-file must be a prompt template for .*"),
        ("--warm-start --num-tasks 0", "--num-tasks must be more than .* got 0"),
        ("--warm-start --train-tasks none.parquet", "--train-tasks: none.parquet: no such task"),
    ],
)
def test_bad_input_is_one_line_and_status_two(
    program: ModuleType,
    flags: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert program.main(["--out", str(tmp_path / "policy"), *flags.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert re.search(message, captured.err)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert program.main(["--out", str(tmp_path)]) == 2
    assert "--out must not exist yet" in capsys.readouterr().err
    assert program.main(["--out", str(tmp_path), "--overwrite"]) == 2
    assert "--out must be a policy folder" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert program.main(["--out", str(tmp_path / "file" / "policy")]) == 2
    message = "--out must be in a folder that can be written to (Not a directory: "
    assert message in capsys.readouterr().err
    assert program.main(["--out", "/proc/none/policy"]) == 2


def test_a_task_file_without_training_rows_is_refused(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tasks.parquet"
    write_tasks(path, [EnvTask(env="frozenlake", task_id="a", seed=2**30, split="eval")])
    out = str(tmp_path / "policy")
    assert program.main(["--out", out, "--warm-start", "--train-tasks", str(path)]) == 2
    assert "--train-tasks must hold train rows of environment 'frozenlake'" in (
        capsys.readouterr().err
    )
