"""A module named ``sgl_kernel`` for machines without a GPU.

Replaces: SGLang's CUDA kernel library (wheel ``sglang-kernel``).
Why: SGLang imports names from it at module level, also on a CPU, and its shared objects need
``libcuda``. With names that resolve and raise only when called, SGLang takes its native PyTorch
paths.

The stand-in is a finder at the end of ``sys.meta_path``: where the real library is installed, the
real one is found first and nothing changes.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

NAME = "sgl_kernel"


class _MissingOperator:
    """Stands for one operator: may be imported, passed around and looked into, but not called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> _MissingOperator:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _MissingOperator(f"{self.__name__}.{attribute}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{self.__name__} is a CUDA kernel and not available on the CPU.")


class _StandInModule(types.ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _MissingOperator(f"{self.__name__}.{attribute}")


class _StandInFinder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == NAME or fullname.startswith(NAME + "."):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def install() -> None:
    """Make ``import sgl_kernel`` work in this process. Does nothing where the real library is
    installed.
    """
    if any(isinstance(finder, _StandInFinder) for finder in sys.meta_path):
        return
    if NAME in sys.modules or importlib.util.find_spec(NAME) is not None:
        return
    sys.meta_path.append(_StandInFinder())
