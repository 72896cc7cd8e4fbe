"""What ``import megatron_agent`` offers, and what it costs."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import megatron_agent

pytestmark = pytest.mark.unit

PUBLIC = {
    "EnvTask": "megatron_agent.task_rows",
    "Episode": "megatron_agent.types",
    "Generation": "megatron_agent.types",
    "MegatronAgentError": "megatron_agent.errors",
    "StepSample": "megatron_agent.types",
    "Turn": "megatron_agent.types",
}


def test_the_door_has_these_names_and_no_others():
    assert set(megatron_agent.__all__) == {*PUBLIC, "__version__"}
    assert len(megatron_agent.__all__) <= 10


@pytest.mark.parametrize(("name", "module"), PUBLIC.items())
def test_a_public_name_is_the_object_itself_and_documented(name, module):
    found = getattr(megatron_agent, name)
    assert (found.__name__, found.__module__) == (name, module)
    assert name in dir(megatron_agent)
    assert name in megatron_agent.__doc__


def test_a_star_import_brings_all_of_them():
    namespace: dict[str, object] = {}
    exec("from megatron_agent import *", namespace)  # noqa: S102
    assert {*PUBLIC, "__version__"} <= set(namespace)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'megatron_agent' has no attribute 'Nothing'"):
        megatron_agent.Nothing  # noqa: B018


def test_the_version_is_the_distributions(repo_root):
    setup = ast.parse((repo_root / "setup.py").read_text())
    [version] = [
        node.value.value
        for node in ast.walk(setup)
        if isinstance(node, ast.keyword) and node.arg == "version"
    ]
    assert megatron_agent.__version__ == version


def test_importing_the_package_loads_the_standard_library_only(repo_root):
    code = (
        "import sys; before = set(sys.modules); import megatron_agent\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names))\n"
        "print([name for name in sys.modules if name.startswith('megatron_agent.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["['megatron_agent']", "[]"]
