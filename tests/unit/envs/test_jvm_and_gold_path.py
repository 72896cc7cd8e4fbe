"""Finding Java, and following a known solution; neither needs an extra."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs import jvm
from envs.data import EnvDataError
from envs.gold_path import GoldPath

pytestmark = pytest.mark.unit


def program(folder: Path) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_java_is_looked_for_at_home_and_then_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, other = program(tmp_path / "home"), program(tmp_path / "other")
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert jvm.find_java() == str(home)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert jvm.find_java() == str(other)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(EnvDataError, match=r"needs Java 8 or newer: .*Install one, e\.g\. apt-get"):
        jvm.find_java()


def test_a_gold_path_goes_on_after_what_is_harmless() -> None:
    path = GoldPath(["take key", "look around", "open door"], harmless=("look", "inventory"))
    path.note("inventory")
    assert path.rest == ("take key", "look around", "open door")
    path.note("take key")
    path.note("look around")
    assert path.rest == ("open door",)
    path.note("go away")
    assert path.rest == ()


def test_a_gold_path_is_lost_by_anything_else() -> None:
    path = GoldPath(["take key"], harmless=("look",))
    path.note("take lamp")
    assert path.rest == ()
    path.note("take key")
    assert path.rest == ()
