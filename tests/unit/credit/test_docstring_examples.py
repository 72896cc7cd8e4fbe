"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import megatron_agent.credit

pytestmark = pytest.mark.unit

MODULES = [
    "megatron_agent.anchors",
    *(
        f"megatron_agent.credit.{info.name}"
        for info in pkgutil.iter_modules(megatron_agent.credit.__path__)
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
