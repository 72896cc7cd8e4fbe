"""What ``torch.cuda`` offers, answered by the CPU: the device module of the CPU platform.

verl asks its platform for a module that looks like ``torch.cuda``; Megatron asks ``torch.cuda``
itself. Both get the functions below (``cuda_standins`` puts some of them in place of functions that
can only fail without a GPU). A process owns one device, the CPU. Memory is that of the process.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import Any, Self

import torch

DEVICE = torch.device("cpu")


def is_available() -> bool:
    """Return True: the CPU is always there."""
    return True


def is_initialized() -> bool:
    """Return True: the CPU needs no initialisation."""
    return True


def device_count() -> int:
    """Return 1: each process owns one device."""
    return 1


def current_device() -> torch.device:
    """Return the CPU. An index would mean a GPU to ``Tensor.to``, so this is a device."""
    return DEVICE


def set_device(device: object) -> None:
    """Do nothing: there is one device."""


def get_device_name(device: object = None) -> str:
    """Return ``"CPU"``, the name under which verl's FLOPS counter files the machine."""
    return "CPU"


def synchronize(device: object = None) -> None:
    """Do nothing: CPU operators have finished when they return."""


def manual_seed(seed: int) -> None:
    """Seed the CPU generator."""
    torch.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the CPU generator."""
    torch.manual_seed(seed)


def get_rng_state(device: object = None) -> torch.Tensor:
    """Return the state of the CPU generator."""
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: object = None) -> None:
    """Set the state of the CPU generator."""
    torch.set_rng_state(new_state)


def empty_cache() -> None:
    """Do nothing: the C allocator keeps no cache of ours."""


def ipc_collect() -> None:
    """Do nothing: CPU tensors are shared by file, not by CUDA handle."""


def set_per_process_memory_fraction(fraction: float, device: object = None) -> None:
    """Do nothing: the operating system limits memory."""


def reset_peak_memory_stats(device: object = None) -> None:
    """Do nothing: the operating system keeps the peak for the life of the process."""


def memory_allocated(device: object = None) -> int:
    """Return the resident memory of this process in bytes."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return max_memory_allocated()


def memory_reserved(device: object = None) -> int:
    """Return the resident memory of this process in bytes."""
    return memory_allocated()


def max_memory_allocated(device: object = None) -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def max_memory_reserved(device: object = None) -> int:
    """Return the peak resident memory of this process in bytes."""
    return max_memory_allocated()


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Return the free and the total memory of the machine in bytes."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    free_pages, total_pages = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PHYS_PAGES")
    return free_pages * page_bytes, total_pages * page_bytes


class Event:
    """A CUDA event on a device whose work is always finished."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: object = None) -> None:
        """Do nothing."""

    def wait(self, stream: object = None) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return True: the recorded work is done."""
        return True

    def elapsed_time(self, end_event: object) -> float:
        """Return 0.0 milliseconds: events keep no time here."""
        return 0.0


class Stream:
    """A CUDA stream on a device that runs one operator at a time."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def synchronize(self) -> None:
        """Do nothing."""

    def wait_stream(self, stream: object) -> None:
        """Do nothing."""

    def wait_event(self, event: object) -> None:
        """Do nothing."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that is done."""
        return event or Event()

    def query(self) -> bool:
        """Return True: the queued work is done."""
        return True


def current_stream(device: object = None) -> Stream:
    """Return a stream; all are alike."""
    return Stream()


def default_stream(device: object = None) -> Stream:
    """Return a stream; all are alike."""
    return Stream()


@contextlib.contextmanager
def stream(stream: object) -> Iterator[None]:
    """Run a block on ``stream``, which is to say: run it."""
    yield
