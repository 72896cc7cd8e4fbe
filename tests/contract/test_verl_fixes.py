"""Each fix is needed by the installed verl, and does what it says."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

pytestmark = pytest.mark.contract


def test_the_separate_trainer_still_passes_flush_to_its_logger() -> None:
    from verl.trainer.ppo.v1 import trainer_separate_async

    calls = [
        node
        for node in ast.walk(ast.parse(Path(trainer_separate_async.__file__).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")
    ]
    assert any(keyword.arg == "flush" for call in calls for keyword in call.keywords), (
        "verl no longer needs it: remove megatron_agent.backend.verl_fixes.repair_separate_async"
    )


def test_its_logger_takes_flush_when_our_trainers_are_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import verl.trainer.ppo.v1  # noqa: F401 - verl must be whole before our part of it
    from verl.trainer.ppo.v1 import trainer_separate_async

    import megatron_agent.backend.trainer  # noqa: F401 - applies the fix

    with caplog.at_level(logging.INFO, logger=trainer_separate_async.logger.name):
        trainer_separate_async.logger.info("the servers are up", flush=True)
    assert "the servers are up" in caplog.text
