"""``make setup`` with a uv that installs nothing: what it refuses, and what it remembers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from setuptools import Distribution  # first: it provides the distutils imported next
from setuptools.dist import distutils

pytestmark = pytest.mark.unit

Setup = Callable[..., subprocess.CompletedProcess[str]]

# Says what it is asked for; ends as if interrupted in the command that $STOP_IN begins.
_UV = """#!/bin/sh
case "$*" in *--help*) echo --excludes; exit 0 ;; esac
echo "$*" >>uv.log
case "$*" in "${STOP_IN:-nothing}"*) exit 130 ;; esac
case "$*" in
venv*)
    [ ! -d .venv ] || [ -e .venv/pyvenv.cfg ] || exit 2  # as uv does
    rm -rf .venv
    mkdir -p .venv/bin
    touch .venv/pyvenv.cfg
    ln -s "$PYTHON" .venv/bin/python ;;
*" -e ."*) touch .venv/bin/megatron-agent; chmod +x .venv/bin/megatron-agent ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path, repo_root: Path) -> Path:
    """A copy of what set-up reads, with lock files in name only."""
    for name in ("tools", "requirements", "bin"):
        (tmp_path / name).mkdir()
    shutil.copy(repo_root / "tools" / "setup_env.sh", tmp_path / "tools")
    shutil.copy(repo_root / "setup.py", tmp_path)
    for lock in (repo_root / "requirements").glob("*.lock"):
        (tmp_path / "requirements" / lock.name).write_text(f"{lock.stem}\n")
    uv = tmp_path / "bin" / "uv"
    uv.write_text(_UV)
    uv.chmod(0o755)
    return tmp_path


@pytest.fixture
def setup(checkout: Path) -> Setup:
    """Calls it as the Makefile does."""

    def call(profile: str = "", extras: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["tools/setup_env.sh", "install", profile, extras],
            cwd=checkout, env={"PATH": path, "PYTHON": sys.executable, **env},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    return call


def stamp(checkout: Path) -> list[str]:
    return (checkout / ".venv" / ".setup-stamp").read_text().splitlines()


@pytest.fixture(scope="module")
def extras(repo_root: Path) -> list[str]:
    """The extras of setup.py that are no profiles, as setuptools reads them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repo_root)
        declared: Distribution = distutils.core.run_setup("setup.py", stop_after="init")
    return [name for name in declared.extras_require if name not in ("cpu", "gpu")]


@pytest.mark.parametrize("name", ["cpu", "gpu", "uv", "alfwrld", "none", "text", "*"])
def test_what_is_no_extra_is_refused_before_anything_is_installed(
    setup: Setup, checkout: Path, extras: list[str], name: str
) -> None:
    done = setup(extras=f"minigrid,{name}")
    got = "bin" if name == "*" else name  # the shell's first match
    hint = f" For a profile use: make setup PROFILE={name}" if name in ("cpu", "gpu") else ""
    assert done.returncode == 1
    assert done.stderr == (
        f"setup: error: EXTRAS must be none or names of {' '.join(extras)}, joined by commas, got "
        f"'{got}'. Correct it, or use: make setup EXTRAS=none.{hint}\n"
    )
    assert not (checkout / ".venv").exists()
    assert not (checkout / "uv.log").exists()


def test_extras_that_name_nothing_are_refused(setup: Setup, checkout: Path) -> None:
    done = setup(extras=",")
    assert done.returncode == 1
    assert "EXTRAS must name an extra, got ','. Use: make setup EXTRAS=none" in done.stderr
    assert not (checkout / ".venv").exists()


def test_every_extra_is_accepted_by_its_lock_or_its_bounds(
    setup: Setup, checkout: Path, extras: list[str]
) -> None:
    done = setup(extras=",".join(extras))
    assert (done.returncode, done.stderr) == (0, "")
    log = (checkout / "uv.log").read_text()
    locked = [name for name in extras if (checkout / "requirements" / f"{name}.lock").is_file()]
    assert "alfworld" in locked
    for name in locked:
        assert f"--require-hashes -r requirements/{name}.lock" in log
    assert f".[{','.join(name for name in extras if name not in locked)}]" in log
    assert stamp(checkout)[:3] == [str(checkout), "cpu", ",".join(extras)]


@pytest.mark.parametrize("stop_in", ["venv", "pip sync", "pip install"])
@pytest.mark.parametrize("before", [False, True], ids=["afresh", "over another"])
def test_an_interrupted_setup_is_taken_up_with_its_profile_and_extras(
    setup: Setup, checkout: Path, stop_in: str, before: bool
) -> None:
    if before:
        assert setup("cpu").returncode == 0
        if stop_in == "venv":
            (checkout / ".venv" / "bin" / "python").unlink()
    assert setup("gpu", "alfworld", STOP_IN=stop_in).returncode == 130
    assert stamp(checkout)[1:3] == ["gpu", "alfworld"]
    (checkout / "uv.log").unlink()
    done = setup()
    assert done.returncode == 0
    assert "is ready (profile gpu, extras alfworld)" in done.stdout
    log = (checkout / "uv.log").read_text()
    assert "requirements/gpu.lock" in log and "requirements/cpu.lock" not in log
    assert stamp(checkout)[:3] == [str(checkout), "gpu", "alfworld"]


def test_a_profile_is_remembered_where_there_was_no_uv_yet(setup: Setup, checkout: Path) -> None:
    assert setup("gpu", PYTHON="/nonexistent").returncode == 1
    assert stamp(checkout) == ["incomplete", "gpu", "none"]
    assert "profile gpu" in setup().stdout


def test_the_stamp_of_an_earlier_version_means_the_cpu_profile(
    setup: Setup, checkout: Path
) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "pyvenv.cfg").touch()
    (checkout / ".venv" / ".setup-stamp").write_text("incomplete\n")
    assert "is ready (profile cpu, extras none)" in setup().stdout
