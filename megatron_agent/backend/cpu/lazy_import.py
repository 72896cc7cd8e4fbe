"""Run code when a named module is imported, without importing it now.

The plugin runs in every process of a training run, and most of them never touch Megatron or
SGLang. So what must happen around such a module is registered here and costs nothing until
somebody imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import ModuleType

from megatron_agent.errors import HookError

Callback = Callable[[ModuleType], None]


@dataclass(frozen=True, kw_only=True)
class _Hook:
    callback: Callback | None
    before: Callable[[], None] | None
    around: Callable[[], AbstractContextManager[object]] | None


def when_imported(
    module_name: str,
    callback: Callback | None = None,
    *,
    before: Callable[[], None] | None = None,
    around: Callable[[], AbstractContextManager[object]] | None = None,
) -> None:
    """Arrange for code to run when ``module_name`` is imported for the first time.

    Several registrations for one module run in the order they were made. An exception in any of
    them makes the import itself fail, so nothing half-patched is used.

    Args:
        module_name: full dotted name, for example ``"verl.utils.distributed"``.
        callback: called with the module once it has been executed. If the module was imported
            earlier, called now.
        before: called just before the module is executed.
        around: makes a context manager that is open while the module is executed.

    Raises:
        HookError: ``before`` or ``around`` is given and the module was imported already.

    Example:
        >>> import sys
        >>> _ = sys.modules.pop("this", None)
        >>> when_imported("colorsys", lambda module: print("loaded", module.__name__))
        >>> import colorsys
        loaded colorsys
    """
    loaded = sys.modules.get(module_name)
    if loaded is not None:
        if before is not None or around is not None:
            raise HookError(
                f"{module_name} was imported before its import hook was set. "
                "Set VERL_USE_EXTERNAL_MODULES=megatron_agent.backend.plugin, so that the hook is "
                "in place as soon as verl is imported."
            )
        if callback is not None:
            callback(loaded)
        return
    _finder().add(module_name, _Hook(callback=callback, before=before, around=around))


class _HookFinder(importlib.abc.MetaPathFinder):
    """Finds hooked modules through the other finders and wraps their loader."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[_Hook]] = {}
        # Imports run in threads: only the thread that is looking a module up must skip us.
        self._looking = threading.local()

    def add(self, module_name: str, hook: _Hook) -> None:
        self._hooks.setdefault(module_name, []).append(hook)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._hooks or getattr(self._looking, "name", None) == fullname:
            return None
        self._looking.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.name = None
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _HookedLoader(spec.loader, self._hooks[fullname])
        return spec


class _HookedLoader(importlib.abc.Loader):
    """Executes a module with its hooks, then steps aside so that nothing of it remains."""

    def __init__(self, loader: importlib.abc.Loader, hooks: Sequence[_Hook]) -> None:
        self._loader = loader
        self._hooks = hooks

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with ExitStack() as stack:
            for hook in self._hooks:
                if hook.before is not None:
                    hook.before()
                if hook.around is not None:
                    stack.enter_context(hook.around())
            self._loader.exec_module(module)
        for hook in self._hooks:
            if hook.callback is not None:
                hook.callback(module)


def _finder() -> _HookFinder:
    """Return the one finder of this process, putting it in front of the others if it is new."""
    for finder in sys.meta_path:
        if isinstance(finder, _HookFinder):
            return finder
    finder = _HookFinder()
    sys.meta_path.insert(0, finder)
    return finder
