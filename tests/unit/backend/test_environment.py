"""Variables that every process of a run inherits."""

from __future__ import annotations

import os

import pytest

from megatron_agent.backend.environment import LIBRARY_DEFAULTS, set_library_defaults

pytestmark = pytest.mark.unit


def test_a_run_asks_no_hub_unless_its_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIBRARY_DEFAULTS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TQDM_DISABLE", "0")
    set_library_defaults()
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["TQDM_DISABLE"] == "0"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    set_library_defaults()
    assert os.environ["HF_HUB_OFFLINE"] == "0"
