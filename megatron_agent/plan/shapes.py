"""The sizes of a model, read from a Hugging Face ``config.json``.

The models that have a file in ``configs/model/`` bring theirs in ``configs/model/shapes/``, so that
a run can be planned before anything is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_agent.config.findings import nearest_key
from megatron_agent.config.overrides import CONFIGS_DIR
from megatron_agent.errors import ConfigError

SHAPES_DIR = CONFIGS_DIR / "model" / "shapes"
SHAPE_KEY = "plan.model_shape"
FAMILIES: tuple[str, ...] = ("qwen2", "qwen3", "llama", "qwen3_moe")
"""Values of ``model_type`` whose parameters are counted here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """What decides bytes and floating-point operations of a decoder.

    Example:
        >>> shape = shipped_shape("qwen2.5-7b-instruct")
        >>> shape.num_layers, shape.query_size, shape.key_value_size
        (28, 3584, 512)
    """

    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    """Width of the MLP: of each expert in a mixture of experts."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    tied_embeddings: bool
    """Whether the output layer is the embedding; a pipeline keeps a copy on its last stage."""
    qkv_bias: bool
    qk_norm: bool
    """Whether queries and keys are normalised per head (Qwen3)."""
    num_experts: int = 0
    """Experts of a layer; 0 for a dense model."""
    experts_per_token: int = 0

    @property
    def query_size(self) -> int:
        """Width of all queries of a token; of its attention output too."""
        return self.num_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Width of all keys of a token, or of all values."""
        return self.num_kv_heads * self.head_dim

    @property
    def active_mlps(self) -> int:
        """MLPs that a token passes in a layer."""
        return self.experts_per_token or 1

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers, in bfloat16.

        Example:
            >>> shipped_shape("qwen2.5-7b-instruct").kv_bytes_per_token  # 28 * 2 * 512 * 2
            57344
        """
        return self.num_layers * 2 * self.key_value_size * 2


def shipped_names() -> tuple[str, ...]:
    """Names of the shapes that come with the package."""
    return tuple(sorted(path.stem for path in SHAPES_DIR.glob("*.json")))


def shipped_shape(name: str) -> ModelShape:
    """A shape of ``configs/model/shapes/``.

    Raises:
        ConfigError: there is none of that name.
    """
    path = SHAPES_DIR / f"{name}.json"
    if not path.is_file():
        near = nearest_key(name, shipped_names())
        remedy = f"Did you mean {near!r}?" if near else "Choose one of them."
        rule = f"must be one of {', '.join(shipped_names())}"
        raise ConfigError(SHAPE_KEY, rule, name, remedy)
    return read_shape(path, name)


def read_shape(path: Path, name: str) -> ModelShape:
    """Read a ``config.json``.

    Args:
        path: the file.
        name: what to call the model in tables.

    Raises:
        ConfigError: the file cannot be read, is of a family that is not counted here, or lacks a
            size.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            SHAPE_KEY, f"must be a readable config.json ({error})", str(path), "Download it again."
        ) from error
    family = config.get("model_type")
    if family not in FAMILIES:
        rule = f"must be of a family that can be planned ({', '.join(FAMILIES)})"
        raise ConfigError(SHAPE_KEY, rule, family, "Name the shipped shape nearest to it.")
    if family == "qwen3_moe" and (
        config.get("mlp_only_layers") or _of(config, "decoder_sparse_step", 1) != 1
    ):
        rule = "must have experts in every layer to be planned"
        raise ConfigError(SHAPE_KEY, rule, str(path), "Name a shape with experts in every layer.")
    try:
        return _from_config(config, family, name)
    except KeyError as error:
        rule = f"must name its {error.args[0]}"
        raise ConfigError(SHAPE_KEY, rule, str(path), "Download the file again.") from error


def _from_config(config: Mapping[str, Any], family: str, name: str) -> ModelShape:
    num_heads = int(config["num_attention_heads"])
    is_moe = family == "qwen3_moe"
    # Published folders have the one name, those that transformers 5 writes the other.
    experts_key = "num_local_experts" if "num_local_experts" in config else "num_experts"
    return ModelShape(
        name=name,
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=int(config["hidden_size"]),
        ffn_size=int(config["moe_intermediate_size" if is_moe else "intermediate_size"]),
        num_heads=num_heads,
        num_kv_heads=int(_of(config, "num_key_value_heads", num_heads)),
        head_dim=int(_of(config, "head_dim", config["hidden_size"] // num_heads)),
        vocab_size=int(config["vocab_size"]),
        max_positions=int(_of(config, "max_position_embeddings", 32768)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        # Qwen2 has these biases without saying so; the others say so.
        qkv_bias=family == "qwen2" or bool(config.get("attention_bias", False)),
        qk_norm=family.startswith("qwen3"),
        num_experts=int(config[experts_key]) if is_moe else 0,
        experts_per_token=int(config["num_experts_per_tok"]) if is_moe else 0,
    )


def _of(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """The value at ``key``; a null counts as absent, as transformers writes both."""
    value = config.get(key)
    return default if value is None else value
