"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from envs.checker import check_env

pytestmark = pytest.mark.unit


def test_the_environment_in_the_readme_keeps_the_contract(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code = re.search(
        r"```python\n(import random.*?)```", (repo_root / "README.md").read_text(), re.S
    )
    assert code is not None
    source = code.group(1)
    assert len([line for line in source.splitlines() if line.strip()]) <= 24
    (tmp_path / "readme_guess.py").write_text(source)
    metadata = tmp_path / "guess-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: guess\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[megatron_agent.envs]\nguess = readme_guess:SPEC\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{repo_root}")  # the checker plays in a child too
    try:
        import readme_guess

        check_env(readme_guess.SPEC)
    finally:
        sys.modules.pop("readme_guess", None)
