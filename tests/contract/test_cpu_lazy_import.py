"""Import hooks: what runs, when, and what is left behind."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from megatron_agent.backend.cpu.lazy_import import when_imported
from megatron_agent.errors import HookError

pytestmark = pytest.mark.contract


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with a module that records its own execution; neither is imported yet."""
    package = f"hooked_{tmp_path.name}".replace("-", "_")
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "inner.py").write_text(
        "import sys\nsys.modules[__package__].log.append('executed')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield f"{package}.inner"
    for name in (package, f"{package}.inner"):
        sys.modules.pop(name, None)


def _log_of(module_name: str) -> list[str]:
    package = importlib.import_module(module_name.rpartition(".")[0])
    package.log = []
    return package.log


def test_hooks_run_around_the_execution_in_order(module_name: str) -> None:
    @contextlib.contextmanager
    def around() -> Iterator[None]:
        log.append("open")
        yield
        log.append("closed")

    when_imported(
        module_name,
        lambda module: log.append(f"after {module.__name__ == module_name}"),
        before=lambda: log.append("before"),
        around=around,
    )
    when_imported(module_name, lambda module: log.append("second"))
    log = _log_of(module_name)
    assert module_name not in sys.modules
    importlib.import_module(module_name)
    importlib.import_module(module_name)
    assert log == ["before", "open", "executed", "closed", "after True", "second"]


def test_nothing_of_the_hook_remains_on_the_module(module_name: str) -> None:
    when_imported(module_name, lambda module: None)
    _log_of(module_name)
    module = importlib.import_module(module_name)
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None and module.__spec__.loader is module.__loader__


def test_a_module_imported_earlier_is_called_back_at_once() -> None:
    seen: list[ModuleType] = []
    when_imported("json", seen.append)
    assert seen == [importlib.import_module("json")]


def test_a_hook_that_comes_too_late_is_an_error() -> None:
    with pytest.raises(HookError, match="json was imported before its import hook was set"):
        when_imported("json", before=lambda: None)


def test_an_exception_in_a_hook_fails_the_import(module_name: str) -> None:
    def refuse(module: ModuleType) -> None:
        raise HookError("not this one")

    when_imported(module_name, refuse)
    _log_of(module_name)
    with pytest.raises(HookError, match="not this one"):
        importlib.import_module(module_name)
    assert module_name not in sys.modules


def test_a_module_that_does_not_exist_stays_missing() -> None:
    when_imported("no_such_module_anywhere", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        importlib.import_module("no_such_module_anywhere")
