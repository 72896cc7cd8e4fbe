"""SGLang on a machine without a GPU: what has to be different, and nothing more.

Four things are replaced, each when SGLang imports the module concerned, so that processes without
SGLang pay nothing:

* ``sgl_kernel``, the CUDA kernel library, by a stand-in (:mod:`sgl_kernel_standin`).
* ``sglang.srt.utils.patch_torch.monkey_patch_torch_reductions`` by nothing. It rewrites how tensors
  are
  pickled so that CUDA handles carry a device's UUID, and fails on CPU tensors, which have no such
  slot.
* the two functions that SGLang runs in child processes, by :mod:`sglang_process`, which sets these
  hooks in
  the child too (a spawned child imports SGLang before it would import verl).
* torch's two functions that share memory by file name, by ones that wait longer
  (:mod:`shared_memory`), for SGLang sends weights through them.
"""

from __future__ import annotations

import os
from types import ModuleType

from megatron_agent.backend.cpu import sgl_kernel_standin
from megatron_agent.backend.cpu.lazy_import import when_imported

_installed = False


def install() -> None:
    """Set the hooks of this process. Safe to call again."""
    global _installed
    if _installed:
        return
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    when_imported("sglang", before=sgl_kernel_standin.install)
    when_imported("sglang.srt.utils.patch_torch", _keep_torch_reductions)
    when_imported("sglang.srt.utils.common", _wait_for_shared_memory)
    when_imported("sglang.srt.entrypoints.engine", _run_children_with_hooks)
    _installed = True


def _keep_torch_reductions(module: ModuleType) -> None:
    module.monkey_patch_torch_reductions = _do_nothing  # type: ignore[attr-defined]


def _do_nothing() -> None:
    """CPU tensors travel through torch's own reductions."""


def _wait_for_shared_memory(_: ModuleType) -> None:
    from megatron_agent.backend.cpu import shared_memory

    shared_memory.install()


def _run_children_with_hooks(module: ModuleType) -> None:
    from megatron_agent.backend.cpu import sglang_process

    module.run_scheduler_process = sglang_process.run_scheduler_process  # type: ignore[attr-defined]
    module.run_detokenizer_process = sglang_process.run_detokenizer_process  # type: ignore[attr-defined]
