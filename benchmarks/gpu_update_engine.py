"""The parts of ``gpu_update.py`` that touch verl, Megatron and the device."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_agent.backend.cpu.lazy_import import when_imported


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A dense Qwen2.5 model."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    tied: bool = False

    @property
    def layer_parameters(self) -> int:
        """Of the matrices of one layer."""
        kv_size = self.hidden // self.heads * self.kv_heads
        return self.hidden * (2 * self.hidden + 2 * kv_size + 3 * self.ffn)

    @property
    def parameters(self) -> int:
        """Of all matrices."""
        return self.layers * self.layer_parameters + self.vocab * self.hidden * (2 - self.tied)

    def forward_flops(self, lengths: list[int]) -> int:
        """Of the matrix products; the causal half of attention, the embedding looked up."""
        products = (
            2 * sum(lengths) * (self.layers * self.layer_parameters + self.vocab * self.hidden)
        )
        return products + sum(2 * self.layers * self.hidden * length**2 for length in lengths)


def make_engine(shape: Shape, folder: Path, device: Any) -> Any:
    """verl's engine for a policy of this shape, with the weights that Megatron begins with."""
    import verl.workers.engine  # noqa: F401 - with it the engines of this package
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig

    _write_model_folder(shape, folder)
    model_config = HFModelConfig(path=str(folder))
    model_config.model_type = "language_model"
    engine = _engine_class(device.type)(
        model_config=model_config,
        engine_config=McoreEngineConfig(
            use_distributed_optimizer=True,
            override_transformer_config={
                "gradient_accumulation_fusion": False,
                "apply_rope_fusion": False,
                "persist_layer_norm": False,
                "masked_softmax_fusion": False,
                "cross_entropy_loss_fusion": False,
                # As configurations for GPUs have it, and as the planner is asked below.
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 1,
            },
        ),
        optimizer_config=McoreOptimizerConfig(lr=1e-6, total_training_steps=1000),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def _engine_class(device_type: str) -> type[Any]:
    import torch
    from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead

    from megatron_agent.backend.cpu.layer_spec import torch_layer_spec

    if device_type == "cpu":
        from megatron_agent.backend.cpu.engine import CPUEngineWithLMHead as parent
    else:
        parent = MegatronEngineWithLMHead

    class RandomPolicy(parent):
        """Plain PyTorch layers, and nothing to load."""

        def _build_tf_config(self) -> None:
            super()._build_tf_config()
            self.provider.transformer_layer_spec = torch_layer_spec
            self.bridge.load_hf_weights = lambda *_, **__: None

        def _build_megatron_module(self) -> Any:
            module = super()._build_megatron_module()
            # Before the optimizer copies them: memory that nobody filled may hold NaN.
            for parameter in (p for chunk in module for p in chunk.parameters()):
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.02)
                else:
                    torch.nn.init.ones_(parameter)
            return module

    return RandomPolicy


def _write_model_folder(shape: Shape, folder: Path) -> None:
    """What verl reads of a model besides its weights."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config

    config = Qwen2Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=shape.tied,
        dtype="bfloat16",
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=2,
    )
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(folder)
    words = {f"w{number}": number for number in range(16)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        eos_token="w1",
        pad_token="w2",
    ).save_pretrained(folder)


def make_batch(
    engine: Any,
    shape: Shape,
    lengths: list[int],
    micro_batch_tokens: int,
    *,
    packed: bool,
    entropy: bool,
) -> Any:
    """Random tokens, the last quarter of each row a response; micro-batches by tokens."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    # The worker that owns an engine sets this on the configuration the engine reads.
    object.__setattr__(engine.engine_config, "use_remove_padding", packed)
    generator = torch.Generator().manual_seed(0)
    device = the_device()

    def nested(make: Callable[[int], torch.Tensor]) -> torch.Tensor:
        rows = [make(length).to(device) for length in lengths]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    data = TensorDict(
        {
            "input_ids": nested(lambda n: torch.randint(3, shape.vocab, (n,), generator=generator)),
            "position_ids": nested(torch.arange),
            "loss_mask": nested(lambda n: (torch.arange(n) >= n - n // 4).long()),
            "temperature": torch.ones(len(lengths), device=device),
        },
        batch_size=len(lengths),
    )
    tu.assign_non_tensor(
        data,
        use_remove_padding=packed,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=micro_batch_tokens,
        use_fused_kernels=False,
        calculate_entropy=entropy,
        global_batch_size=len(lengths),
    )
    return data


def log_probs(engine: Any, batch: Any) -> None:
    """What the old policy's pass does."""
    with engine.eval_mode():
        engine.infer_batch(batch, loss_function=None)


def update(engine: Any, batch: Any) -> None:
    """One optimizer step."""
    with engine.train_mode():
        engine.train_batch(batch, loss_function=_loss)


def _loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, dict[str, Any]]:
    """Mean negative log-probability of the responses: the cost of a policy loss."""
    pairs = zip(model_output["log_probs"].unbind(), data["loss_mask"].unbind(), strict=True)
    total = sum(log_probs[:-1][mask[1:].bool()].sum() for log_probs, mask in pairs)
    return -total / data["batch_num_tokens"] * data["dp_size"], {}


def forget(engine: Any) -> None:
    """Free what the engine holds on the device, for the next shape."""
    for name in ("module", "optimizer", "lr_scheduler", "checkpoint_mananager"):
        setattr(engine, name, None)


def set_environment() -> None:
    """One process, which is the whole world; on a CPU with verl's CPU platform."""
    import torch

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
    if torch.cuda.is_available():
        if importlib.util.find_spec("transformer_engine") is None:
            # Megatron-Bridge imports it for LoRA, whether anybody asks for LoRA or not.
            from megatron_agent.backend.cpu.cuda_standins import (
                LORA_LAYERS,
                empty_transformer_engine,
            )

            when_imported(LORA_LAYERS, around=empty_transformer_engine)
        return
    os.environ["VERL_PLATFORM"] = "cpu"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from megatron_agent.backend import cpu

    assert cpu.register()


@contextlib.contextmanager
def process_group(device: Any) -> Iterator[None]:
    """A world of this process alone."""
    from megatron.core import parallel_state
    from verl.utils.distributed import (
        destroy_global_process_group,
        initialize_global_process_group_ray,
    )

    with socket.create_server(("127.0.0.1", 0)) as probe:
        os.environ["MASTER_PORT"] = str(probe.getsockname()[1])
    if device.type == "cuda":
        import torch

        torch.cuda.set_device(device)
    initialize_global_process_group_ray()
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        destroy_global_process_group()


def the_device() -> Any:
    """The first GPU, or the CPU."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def device_name(device: Any) -> str:
    """For the heading."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def matrix_rate(device: Any) -> float:
    """FLOP/s of the largest product that the device is fast at."""
    import torch

    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        left @ right
    seconds = min(seconds_of(lambda: left @ right, device) for _ in range(20))
    return 2 * size**3 / seconds


def seconds_of(run: Callable[[], Any], device: Any) -> float:
    """Wall-clock time of ``run``, until the device is done."""
    _synchronize(device)
    started_s = time.perf_counter()
    run()
    _synchronize(device)
    return time.perf_counter() - started_s


def _synchronize(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def reset_peak(device: Any) -> None:
    """Forget the peak so far; a CPU process cannot."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: Any) -> int:
    """Allocated on a GPU; of the process and since its start on a CPU."""
    import torch

    from megatron_agent.backend.cpu.device import max_memory_allocated

    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return max_memory_allocated()
