"""The production stack on a machine without a GPU: same verl, same Megatron, same SGLang.

``register()`` is all that other code calls. It imports nothing heavy: the parts that concern
Megatron wait until somebody imports verl's Megatron engine.

platform.py       the CPU as a verl platform
device.py         the functions of ``torch.cuda``, answered by the CPU
lazy_import.py    run code when a module gets imported
cuda_standins.py  stand-ins for what Megatron takes from CUDA
norm.py attention.py layer_spec.py
                  a transformer in plain PyTorch with Transformer Engine's parameter names
transformer_settings.py
                  Megatron's switches for its CUDA operators
adapters.py       LoRA on those layers
engine.py         verl's Megatron engines for the device "cpu"
sgl_kernel_standin.py sglang_hooks.py sglang_process.py
                  SGLang without its CUDA kernel library
shared_memory.py  weights reach the servers on a busy machine, too
"""

from __future__ import annotations

import sys
from types import ModuleType

MEGATRON_BRIDGE = "megatron.bridge"
VERL_MEGATRON_ENGINE = "verl.workers.engine.megatron.transformer_impl"


def register() -> bool:
    """Register the CPU platform and its Megatron engines, if verl runs on the CPU here.

    Safe to call again, and from a module that verl imports while it is being imported itself.

    Returns:
        Whether the platform is the CPU.

    Raises:
        HookError: verl's Megatron engine or Megatron-Bridge was imported before this call.
    """
    from megatron_agent.backend.cpu.platform import is_cpu_platform, register_platform

    global _registered
    if not is_cpu_platform():
        return False
    if not _registered:
        from megatron_agent.backend.cpu import sglang_hooks
        from megatron_agent.backend.cpu.lazy_import import when_imported

        register_platform()
        sglang_hooks.install()
        if not _standins_installed():  # else this process was forked with Megatron in place
            # Megatron-Bridge cannot be imported without the stand-ins, whoever asks first.
            when_imported(MEGATRON_BRIDGE, before=_install_standins)
        when_imported(VERL_MEGATRON_ENGINE, _register_engines, before=_install_standins)
        _registered = True
    return True


_registered = False


def _standins_installed() -> bool:
    standins = sys.modules.get(f"{__name__}.cuda_standins")
    return standins is not None and standins.installed()


def _install_standins() -> None:
    from megatron_agent.backend.cpu import cuda_standins

    cuda_standins.install()


def _register_engines(engine_module: ModuleType) -> None:
    from megatron_agent.errors import HookError

    try:
        import megatron_agent.backend.cpu.engine  # noqa: F401
    except ImportError as error:
        # verl turns an ImportError here into a warning and goes on without an engine.
        raise HookError(f"The Megatron engine for the CPU cannot be imported: {error}") from error
