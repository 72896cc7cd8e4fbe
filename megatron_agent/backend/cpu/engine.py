"""verl's Megatron engines on the CPU, for a policy and for a critic.

They are verl's own engines. What differs is set here once: float32, plain PyTorch layers, no fused
CUDA operators, and :class:`cuda_means_cpu` around whatever runs Megatron's code. Importing this
module registers them with verl for the device "cpu".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.config import CheckpointConfig
from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.megatron.transformer_impl import (
    MegatronEngine,
    MegatronEngineWithLMHead,
    MegatronEngineWithValueHead,
)

from megatron_agent.backend.cpu.adapters import check_adapters, feed_adapters
from megatron_agent.backend.cpu.cuda_standins import cuda_means_cpu
from megatron_agent.backend.cpu.layer_spec import torch_layer_spec
from megatron_agent.backend.cpu.transformer_settings import WITHOUT_CUDA
from megatron_agent.errors import ConfigError

logger = logging.getLogger(__name__)


class CPUEngineMixin(MegatronEngine):
    """The difference between verl's Megatron engines and ours, to be put in front of them."""

    def __init__(
        self,
        model_config: HFModelConfig,
        engine_config: McoreEngineConfig,
        optimizer_config: McoreOptimizerConfig,
        checkpoint_config: CheckpointConfig,
    ) -> None:
        adapt_engine_config(engine_config)
        check_adapters(model_config.lora, engine_config.expert_model_parallel_size)
        # Trained weights go to the inference servers as shared memory. By file rather than by file
        # descriptor, because the receiving process is not a child of this one.
        torch.multiprocessing.set_sharing_strategy("file_system")
        # verl compiles one small product of its entropy. Here that would need a C++ compiler and
        # ten seconds or more of the first step.
        torch.compiler.set_stance("force_eager")
        with cuda_means_cpu():
            super().__init__(model_config, engine_config, optimizer_config, checkpoint_config)

    def _build_tf_config(self) -> None:
        super()._build_tf_config()
        self.provider.transformer_layer_spec = torch_layer_spec

    def _build_megatron_module(self) -> Any:
        module = super()._build_megatron_module()
        feed_adapters(module)
        return module

    def initialize(self) -> None:
        with cuda_means_cpu():
            super().initialize()

    def to(
        self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True
    ) -> None:
        """Do nothing: model, optimizer and gradients are where they are used."""

    def optimizer_zero_grad(self) -> None:
        with cuda_means_cpu():
            super().optimizer_zero_grad()

    def optimizer_step(self) -> Any:
        with cuda_means_cpu():
            return super().optimizer_step()

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any], forward_only: bool = False
    ) -> Any:
        with cuda_means_cpu():
            return super().forward_backward_batch(data, loss_function, forward_only=forward_only)

    def get_per_tensor_param(
        self, base_sync_done: bool = False, **kwargs: Any
    ) -> tuple[Iterator[tuple[str, torch.Tensor]], Any]:
        with cuda_means_cpu():
            weights, peft_config = super().get_per_tensor_param(base_sync_done, **kwargs)
        return _iterate_in_context(weights), peft_config

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        _start_optimizer_state(getattr(self, "optimizer", None))
        with cuda_means_cpu():
            super().save_checkpoint(*args, **kwargs)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        # With float32 parameters the distributed optimizer's main parameters are views of the
        # model's, and it copies into them in place; autograd forbids that on views of leaves.
        _start_optimizer_state(getattr(self, "optimizer", None))
        with cuda_means_cpu(), torch.no_grad():
            super().load_checkpoint(*args, **kwargs)


@EngineRegistry.register(model_type="language_model", backend="megatron", device="cpu")
class CPUEngineWithLMHead(CPUEngineMixin, MegatronEngineWithLMHead):
    """A policy (actor or reference) on the CPU."""


@EngineRegistry.register(model_type="value_model", backend="megatron", device="cpu")
class CPUEngineWithValueHead(CPUEngineMixin, MegatronEngineWithValueHead):
    """A critic on the CPU."""


def adapt_engine_config(engine_config: McoreEngineConfig) -> None:
    """Set float32 and the defaults for the CPU in ``engine_config``, in place.

    verl validates the configuration when it is made and allows only half precisions there, which
    Megatron's optimizer supports for CUDA tensors alone; so float32 is set afterwards. It is set in
    place since the worker that owns the configuration goes on reading it. Offloading is turned off.

    Raises:
        ConfigError: a setting that cannot work on the CPU.
    """
    for key, wanted in (("context_parallel_size", 1), ("vanilla_mbridge", False)):
        value = getattr(engine_config, key)
        if value != wanted:
            raise ConfigError(
                f"actor_rollout_ref.actor.megatron.{key}",
                f"must be {wanted!r} on the CPU platform",
                value,
                f"Set it to {wanted!r}.",
            )
    for key in ("param_offload", "grad_offload", "optimizer_offload"):
        if getattr(engine_config, key, False):
            logger.warning(
                "%s has no effect on the CPU platform: there is nowhere to move to.", key
            )
            object.__setattr__(engine_config, key, False)
    # A user's own still win.
    overrides = {**WITHOUT_CUDA, **engine_config.override_transformer_config}
    object.__setattr__(engine_config, "dtype", "float32")
    object.__setattr__(engine_config, "override_transformer_config", overrides)


def _start_optimizer_state(optimizer: Any) -> None:
    """Give an optimizer that has not taken a step yet the state of step 0.

    torch's Adam makes its state in the first step. Without Transformer Engine or Apex, Megatron
    reads the step count out of that state to lay out a checkpoint, also one that is about to be
    loaded, and fails when there is none.
    """
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        adam = getattr(part, "optimizer", None)
        if not isinstance(adam, torch.optim.Adam | torch.optim.AdamW):
            continue
        for group in adam.param_groups:
            for parameter in group["params"]:
                if not adam.state[parameter]:
                    adam.state[parameter] = {
                        "step": torch.tensor(0.0),
                        "exp_avg": torch.zeros_like(parameter.data),
                        "exp_avg_sq": torch.zeros_like(parameter.data),
                    }


def _iterate_in_context(
    weights: Iterator[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield from ``weights``, which run Megatron's code, leaving the context for the consumer."""
    iterator = iter(weights)
    while True:
        with cuda_means_cpu():
            item = next(iterator, None)
        if item is None:
            return
        yield item
