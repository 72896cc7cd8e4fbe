"""Names of SGLang's CUDA library that resolve, and refuse to be called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_agent.backend.cpu import sgl_kernel_standin
from megatron_agent.backend.cpu.sgl_kernel_standin import NAME

pytestmark = pytest.mark.unit


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has neither the library nor the stand-in."""
    finders = [
        finder
        for finder in sys.meta_path
        if not isinstance(finder, sgl_kernel_standin._StandInFinder)
    ]
    monkeypatch.setattr(sys, "meta_path", finders)
    forget()
    yield
    forget()


def test_the_package_and_its_submodules_can_be_imported():
    sgl_kernel_standin.install()
    from sgl_kernel import rmsnorm
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    assert rmsnorm.__name__ == "sgl_kernel.rmsnorm"
    assert flash_attn_with_kvcache.__name__ == "sgl_kernel.flash_attn.flash_attn_with_kvcache"


def test_an_operator_can_be_looked_into_but_not_called():
    sgl_kernel_standin.install()
    operator = importlib.import_module(NAME).rmsnorm.default
    with pytest.raises(
        RuntimeError,
        match=r"^sgl_kernel\.rmsnorm\.default is a CUDA kernel and not available on the CPU\.$",
    ):
        operator(1, out=2)


def test_special_names_stay_missing_so_that_inspection_is_not_fooled():
    sgl_kernel_standin.install()
    module = importlib.import_module(NAME)
    for thing in (module, module.rmsnorm):
        with pytest.raises(AttributeError, match="__version__"):
            thing.__version__  # noqa: B018


def test_installing_twice_adds_one_finder():
    sgl_kernel_standin.install()
    before = len(sys.meta_path)
    sgl_kernel_standin.install()
    assert len(sys.meta_path) == before


def test_a_real_library_is_left_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / f"{NAME}.py").write_text("rmsnorm = 'real'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    before = list(sys.meta_path)
    sgl_kernel_standin.install()
    assert sys.meta_path == before
    assert importlib.import_module(NAME).rmsnorm == "real"


def test_other_names_are_not_answered_for():
    sgl_kernel_standin.install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sgl_kernel_of_somebody_else")
