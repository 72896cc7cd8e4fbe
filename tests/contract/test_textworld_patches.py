"""The functions of TextWorld and Fast Downward that `envs.alfworld.engine_patches` replaces."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from envs.alfworld import engine_patches
from envs.alfworld.engine_patches import PATCHES, Patch

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_the_installed_source_is_the_one_the_patch_was_written_for(patch: Patch):
    assert patch.installed_digest() == patch.digest, (
        f"{patch.module}.{patch.name} has changed. Read what changed, decide whether the "
        f"replacement still gives the same results, and write the new digest into the patch."
    )


@pytest.fixture
def official_game(shared_data: Path, tmp_path: Path) -> Path:
    """One official game."""
    archive = shared_data / "alfworld_json_2.1.1_valid_seen140.tar.xz"
    with tarfile.open(archive) as file:
        member = next(entry for entry in file if entry.name.endswith("game.tw-pddl"))
        file.extract(member, tmp_path, filter="data")
    return tmp_path / member.name


def test_facts_are_the_same_after_they_were_forgotten(monkeypatch: pytest.MonkeyPatch):
    from mementos import core
    from textworld.logic import Proposition, Variable

    before = Proposition("holds", [Variable("agent1"), Variable("mug 1")])
    assert Proposition("holds", [Variable("agent1"), Variable("mug 1")]) is before
    monkeypatch.setattr(engine_patches, "_MAX_REMEMBERED", len(core._memento_cache))
    engine_patches.forget_old_facts()
    assert core._memento_cache
    monkeypatch.setattr(engine_patches, "_MAX_REMEMBERED", 0)
    engine_patches.forget_old_facts()
    assert not core._memento_cache
    again = Proposition("holds", [Variable("agent1"), Variable("mug 1")])
    assert again is not before
    assert (again, hash(again)) == (before, hash(before))
    assert {before: 1}[again] == 1


PLAY = """
import hashlib, json, random, sys
from pathlib import Path
from envs.alfworld import engine_patches, engine
if sys.argv[2] == "stock":
    engine.apply_patches = tuple
game = engine.Game(Path(sys.argv[1]))
rng, shown = random.Random(3), []
for _ in range(2):
    scene = game.restart()
    for _ in range(10):
        shown.append([scene.text, scene.commands, scene.won, game.state_text()])
        if scene.won:
            break
        scene = game.act(rng.choice(scene.commands))
applied = len(engine_patches.apply_patches()) if sys.argv[2] == "patched" else 0
print(applied, len(shown), hashlib.sha256(json.dumps(shown).encode()).hexdigest())
"""


def test_patched_and_unpatched_games_show_the_same(official_game: Path, repo_root: Path):
    shown = {
        mode: subprocess.run(
            [sys.executable, "-c", PLAY, str(official_game), mode],
            cwd=repo_root,
            check=True,
            capture_output=True,
            text=True,
            timeout=250,
        ).stdout.split()
        for mode in ("stock", "patched")
    }
    assert shown["patched"][0] == str(len(PATCHES))
    assert shown["patched"][1:] == shown["stock"][1:]


def test_a_patch_that_does_not_fit_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    other = Patch(
        module="json",
        name="dumps",
        digest=hashlib.sha256(b"another source").hexdigest(),
        why="it is slow",
        replace=lambda original: None,
    )
    gone = Patch(module="json", name="no_such", digest="", why="it is slow", replace=print)
    monkeypatch.setattr(engine_patches, "PATCHES", (other, gone))
    with caplog.at_level(logging.WARNING):
        assert engine_patches.apply_patches.__wrapped__() == ()
    assert "json.dumps is not the source" in caplog.text
    assert "json.no_such is not the source" in caplog.text
