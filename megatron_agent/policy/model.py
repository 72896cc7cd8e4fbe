"""A random, tiny, Hugging Face causal language model of a well-known shape.

The shapes are those of real families (Qwen2: biases on q, k, v; Qwen3: normed q and k; Llama:
neither), so that every converter, engine and server treats the tiny model as it treats a large one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from megatron_agent.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ARCHITECTURES = ("qwen2", "qwen3", "llama")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Sizes of a model; checked when made.

    Example:
        >>> ModelShape(hidden=128, heads=4).head_dim
        32
        >>> ModelShape(heads=3)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        megatron_agent.errors.ConfigError: heads must divide hidden (128), got 3. Use 1, 2, ...
    """

    arch: str = "qwen2"
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate: int | None = None
    """Width of the feed-forward layer; three times ``hidden`` when None."""
    tied: bool = True
    """Input and output embedding are one matrix."""
    max_positions: int = 4096

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:
            raise ConfigError(
                "arch", f"must be one of {', '.join(ARCHITECTURES)}", self.arch, "Use qwen2."
            )
        for key in ("hidden", "layers", "heads", "kv_heads", "max_positions"):
            if getattr(self, key) < 1:
                raise ConfigError(
                    key, "must be at least 1", getattr(self, key), "Use a positive number."
                )
        if self.intermediate is not None and self.intermediate < 1:
            raise ConfigError(
                "intermediate", "must be at least 1", self.intermediate, "Leave it out."
            )
        if self.hidden % 2:
            raise ConfigError("hidden", "must be even", self.hidden, f"Use {self.hidden + 1}.")
        even_head_divisors = [n for n in range(1, self.hidden) if self.hidden % (2 * n) == 0]
        if self.hidden % self.heads:
            raise ConfigError(
                "heads", f"must divide hidden ({self.hidden})", self.heads, _use(even_head_divisors)
            )
        if self.head_dim % 2:
            raise ConfigError(
                "heads",
                f"must leave an even head size for rotary positions (hidden {self.hidden} / heads)",
                self.heads,
                _use(even_head_divisors),
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                "kv_heads",
                f"must divide heads ({self.heads})",
                self.kv_heads,
                _use([n for n in range(1, self.heads + 1) if self.heads % n == 0]),
            )

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def build_model(
    shape: ModelShape, tokenizer: PreTrainedTokenizerBase, *, seed: int
) -> PreTrainedModel:
    """A float32 model with random weights; equal arguments give equal weights.

    The global random state of torch is left as it was.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    config = _config(shape, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # No top_k, top_p or penalties: a server that reads this file samples from the distribution that
    # is trained.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def num_parameters(model: PreTrainedModel) -> int:
    """Number of distinct parameters; tied embeddings count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _config(shape: ModelShape, tokenizer: PreTrainedTokenizerBase) -> Any:
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    config_class = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}[shape.arch]
    # Qwen3's default head size is 128 whatever the width; Qwen2 derives it and has no such key.
    extra = {} if shape.arch == "qwen2" else {"head_dim": shape.head_dim}
    return config_class(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate or 3 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=shape.tied,
        # A narrow model needs larger initial weights than the families' 0.02 to start learning at
        # once.
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **extra,
    )


def _use(numbers: list[int]) -> str:
    """The remedy that lists what would do, such as ``Use 1, 2 or 4.``."""
    words = [str(number) for number in numbers]
    return (
        f"Use {', '.join(words[:-1])} or {words[-1]}."
        if len(words) > 1
        else f"Use {''.join(words)}."
    )
