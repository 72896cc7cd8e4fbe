"""The checks themselves load nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

HEAVY = ("torch", "verl", "ray", "sglang", "megatron", "transformers")


def test_registering_all_checks_loads_nothing_heavy() -> None:
    code = (
        "import sys; from megatron_agent.doctor import all_checks; all_checks(); "
        f"print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == ""
