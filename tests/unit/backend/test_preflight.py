"""All that is missing in a process is said in one message."""

from __future__ import annotations

import pytest

from megatron_agent.backend.preflight import check_registration
from megatron_agent.errors import HookError

pytestmark = pytest.mark.unit


def test_nothing_missing_is_no_error():
    check_registration([], "driver")


def test_all_problems_come_together_with_a_remedy():
    with pytest.raises(HookError) as raised:
        check_registration(["no trainer 'x' is registered.", "wrong platform."], "Ray worker")
    message = str(raised.value)
    assert message.startswith("The plugin is not whole in the Ray worker:\n")
    assert "no trainer 'x' is registered.\n  wrong platform." in message
    assert "VERL_USE_EXTERNAL_MODULES=megatron_agent.backend.plugin" in message
