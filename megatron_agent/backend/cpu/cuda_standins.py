"""Stand-ins for what megatron-core and Megatron-Bridge take from CUDA.

Megatron and verl name CUDA in seven ways. Each has its own stand-in, as narrow as it can be:

========================================  ==========================================================
Megatron writes                           what answers
========================================  ==========================================================
``torch.cuda.current_device()``, ...      the function of :mod:`.device`, put in place for the whole
                                          process: without a GPU the original can only raise
``tensor.pin_memory()``                   the tensor itself, likewise (verl copies weights so)
``device="cuda"``, ``tensor.cuda()``,     :class:`cuda_means_cpu`, a context in which the CPU engine
``tensor.type() == "torch.cuda..."``      runs Megatron's code; other code in the process sees none
                                          of it
its own ``_set_cuda_rng_state``           the CPU generator (module-level functions, replaced)
its own ``maybe_move_tensor_to_cpu``      the tensor, as numpy where Megatron asks for it; its own
                                          leaves a tensor that is no CUDA tensor alone
its own ``HAVE_TE`` in ``peft.utils``     no; it takes megatron-core's mocks for layers
``import transformer_engine`` in          an empty package that exists only while that one module is
``lora_layers``, without asking           executed; elsewhere it would make Megatron believe in it
========================================  ==========================================================

``install`` refuses to run where a GPU is visible.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from megatron_agent.backend.cpu import device
from megatron_agent.backend.cpu.lazy_import import when_imported
from megatron_agent.errors import HookError

# Names of torch.cuda that Megatron calls on the path of a dense model. ``is_available`` is not
# among them: it must go on answering False, since much code asks it before it uses CUDA. Nor is
# ``manual_seed_all``, which ``torch.manual_seed`` calls itself.
REPLACED_IN_TORCH_CUDA = (
    "current_device",
    "set_device",
    "synchronize",
    "get_rng_state",
    "set_rng_state",
    "manual_seed",
    "current_stream",
    "default_stream",
    "stream",
    "Stream",
    "Event",
)

LORA_LAYERS = "megatron.bridge.peft.lora_layers"
LORA_UTILS = "megatron.bridge.peft.utils"
MEGATRON_RANDOM = "megatron.core.tensor_parallel.random"
MEGATRON_JIT = "megatron.core.jit"
MEGATRON_DISPATCHER = "megatron.core.transformer.moe.token_dispatcher"

_installed = False


def install() -> None:
    """Put the process-wide stand-ins in place. Safe to call again.

    Call it before megatron is imported, in a process that trains on the CPU.

    Raises:
        HookError: a GPU is visible, or a part of Megatron was imported already.
    """
    global _installed
    if _installed:
        return
    if torch.cuda.is_available():
        raise HookError(
            "The CPU platform is selected, but this process sees a GPU and the stand-ins for CUDA "
            "would hide it. Unset VERL_PLATFORM to use the GPU, or hide the GPU with "
            "CUDA_VISIBLE_DEVICES=''."
        )
    when_imported(MEGATRON_JIT, _disable_jit_fuser)
    when_imported(MEGATRON_RANDOM, _use_cpu_generator)
    when_imported(MEGATRON_DISPATCHER, _move_nothing_to_cpu)
    when_imported(LORA_LAYERS, around=empty_transformer_engine)
    when_imported(LORA_UTILS, _do_without_transformer_engine)
    for name in REPLACED_IN_TORCH_CUDA:
        setattr(torch.cuda, name, getattr(device, name))
    torch.Tensor.pin_memory = _itself
    _installed = True


def _itself(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
    """All memory of a machine without a GPU is as near as memory gets."""
    return tensor


def installed() -> bool:
    """Return whether the stand-ins are in place in this process."""
    return _installed


class cuda_means_cpu(TorchFunctionMode):
    """Context in which torch takes "cuda" for the CPU, on the thread that entered it.

    - A device argument that names CUDA names the CPU instead.
    - ``tensor.cuda()`` and ``module.cuda()`` return the tensor or module itself.
    - ``tensor.type()`` answers ``torch.cuda.FloatTensor`` for a CPU tensor, because Megatron
      compares it with that name before it clips gradients and shards the optimizer.

    torch suspends such contexts during the backward pass. What Megatron runs there asks
    ``torch.cuda.current_device()`` where it allocates, and that has its own stand-in.

    Example:
        >>> with cuda_means_cpu():
        ...     ones = torch.ones(2, device="cuda")
        >>> ones.device
        device(type='cpu')
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if len(args) > 1 and _names_cuda(args[1]):  # tensor.to("cuda")
            args = (args[0], device.DEVICE, *args[2:])
        # A training step comes by here thousands of times, mostly to read an attribute: keep that
        # path short.
        if not kwargs:
            result = func(*args)
            if func is torch.Tensor.type and len(args) == 1:
                return result.replace("torch.", "torch.cuda.", 1)
            return result
        if _names_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": device.DEVICE}
        return func(*args, **kwargs)


def _names_cuda(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _disable_jit_fuser(megatron_jit: ModuleType) -> None:
    """Keep Megatron from compiling its small fused operators: on a CPU that costs minutes."""
    megatron_jit.disable_jit_fuser()


def _use_cpu_generator(megatron_random: ModuleType) -> None:
    """Let Megatron's random-state tracker, written for CUDA generators, drive the CPU generator."""

    def get_state(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(new_state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        torch.set_rng_state(new_state)

    for name, function in (("_get_cuda_rng_state", get_state), ("_set_cuda_rng_state", set_state)):
        if not hasattr(megatron_random, name):
            raise HookError(
                f"{MEGATRON_RANDOM} has no {name}, so random states cannot be kept on the CPU. "
                "Install the megatron-core version of requirements/."
            )
        setattr(megatron_random, name, function)
    # The tracker warns when code for the GPU generator moved the CPU generator. Here they are one.
    logging.getLogger(MEGATRON_RANDOM).addFilter(
        lambda record: "CPU RNG state changed" not in record.getMessage()
    )


def _move_nothing_to_cpu(dispatcher: ModuleType) -> None:
    """Let the token dispatcher have its split sizes as numpy, though they are on the CPU already.

    ``all_to_all_single`` does not take them as a tensor.
    """

    def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, **_: Any) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    name = maybe_move_tensor_to_cpu.__name__
    if not hasattr(dispatcher, name):
        raise HookError(
            f"{MEGATRON_DISPATCHER} has no {name}, so mixtures of experts cannot run on the CPU. "
            "Install the megatron-core version of requirements/."
        )
    setattr(dispatcher, name, maybe_move_tensor_to_cpu)


def _do_without_transformer_engine(lora_utils: ModuleType) -> None:
    """Let LoRA take Megatron's own linear layers for what they are.

    Without Transformer Engine megatron-core derives its layers from a mock, and gets mocks, which
    Megatron-Bridge takes for classes; every model then ends in a TypeError.
    """
    if not isinstance(lora_utils.TELinear, type):
        lora_utils.HAVE_TE = False  # type: ignore[attr-defined]


@contextlib.contextmanager
def empty_transformer_engine() -> Iterator[None]:
    """Satisfy the unconditional imports of ``lora_layers`` while that module is executed.

    What ``lora_layers`` imports in turn is imported first, so that it does not see the stand-in.
    """
    import megatron.bridge.peft.adapter_wrapper
    import megatron.bridge.peft.lora_merge
    import megatron.core.transformer.moe.moe_utils  # noqa: F401

    if "transformer_engine" in sys.modules:
        yield
        return
    package = _AnyLayer("transformer_engine")
    package.pytorch = _AnyLayer("transformer_engine.pytorch")
    package.pytorch.ops = _AnyLayer("transformer_engine.pytorch.ops")
    standins = {"transformer_engine": package, "transformer_engine.pytorch": package.pytorch}
    sys.modules.update(standins)
    try:
        yield
    finally:
        for name in standins:
            del sys.modules[name]


class _AnyLayer(ModuleType):
    """A module in which every public name is a layer class that no model contains.

    ``lora_layers`` uses the names in annotations and in ``isinstance`` checks, which then fail.
    """

    pytorch: _AnyLayer
    ops: _AnyLayer

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # a package: `import transformer_engine.pytorch` works

    def __getattr__(self, name: str) -> type[torch.nn.Module]:
        if name.startswith("__"):
            raise AttributeError(name)
        layer = type(name, (torch.nn.Module,), {})
        setattr(self, name, layer)
        return layer
