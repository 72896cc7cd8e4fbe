"""The CPU as a verl platform.

verl places workers by a Ray resource, moves tensors to ``device_name`` and builds process groups
with the platform's backend. Here the resource keeps the name "GPU" (a run declares as many as it
wants ranks: ``ray_init.num_gpus``), so verl's placement code runs unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from megatron_agent.backend.cpu import device

PLATFORM_NAME = "cpu"

# verl names a backend for the CPU and one for the device. When the device is the CPU, torch refuses
# the string because it names one device twice.
_BACKEND_NAMED_TWICE = "cpu:gloo,cpu:gloo"


class PlatformCPU(PlatformBase):
    """One CPU device per process, gloo between processes, memory handled by the OS."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return device

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return not other_platform_present()

    def current_device(self) -> torch.device:
        return device.current_device()

    def device_count(self) -> int:
        return device.device_count()

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        # Ray sets this one for workers that hold a "GPU", and verl reads it back.
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        # "IPC" means CUDA handles. Weights go to the servers through shared memory instead.
        return False

    def cudart(self) -> None:
        return None


def register_platform() -> None:
    """Register :class:`PlatformCPU` with verl under the name ``cpu``. Safe to call again."""
    if PlatformRegistry.get(PLATFORM_NAME) is not PlatformCPU:
        PlatformRegistry.register(platform=PLATFORM_NAME)(PlatformCPU)
    accept_gloo_named_twice()


def is_cpu_platform() -> bool:
    """Return whether verl runs, or will run, on the CPU platform in this process.

    ``VERL_PLATFORM`` decides if it is set. Otherwise the answer is yes when no other platform that
    verl knows is present: the question verl itself asks, in the same words.
    """
    name = os.environ.get("VERL_PLATFORM", "").strip().lower()
    if name:
        return name == PLATFORM_NAME
    return not other_platform_present()


@functools.cache
def other_platform_present() -> bool:
    """Return whether this host has a GPU or another accelerator that verl knows."""
    return any(
        platform_class().is_platform_available(use_smi_check=True)
        for name in PlatformRegistry.registered_names()
        if name != PLATFORM_NAME and (platform_class := PlatformRegistry.get(name)) is not None
    )


def accept_gloo_named_twice() -> None:
    """Let ``torch.distributed.init_process_group`` take verl's backend string for the CPU.

    The string ``cpu:gloo,cpu:gloo`` becomes ``gloo``; every other call is unchanged.
    """
    original: Callable[..., Any] = torch.distributed.init_process_group
    if getattr(original, "accepts_gloo_named_twice", False):
        return

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if backend == _BACKEND_NAMED_TWICE:
            backend = "gloo"
        return original(backend, *args, **kwargs)

    init_process_group.accepts_gloo_named_twice = True  # type: ignore[attr-defined]
    torch.distributed.init_process_group = init_process_group
