"""Merging a LoRA adapter into the weights that it was trained on."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch

from megatron_agent.checkpoint.rules import ModelRules, ParamRule
from megatron_agent.checkpoint.safetensors_folder import SafetensorsFolder
from megatron_agent.checkpoint.weights import FromHF, Weights
from megatron_agent.errors import CheckpointError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_UNSUPPORTED = {
    "use_dora": False,
    "fan_in_fan_out": False,
    "bias": "none",
    "modules_to_save": None,
    "layers_pattern": None,
}


class LoraAdapter:
    """An adapter in PEFT's format, as verl and Megatron-Bridge write it."""

    def __init__(self, folder: Path) -> None:
        """Read the configuration and the header of the weights.

        Raises:
            CheckpointError: no LoRA adapter in safetensors, or a kind of LoRA that is not plain.
        """
        self.folder = folder
        path = folder / CONFIG
        try:
            self._config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._rank, self._alpha = int(self._config["r"]), float(self._config["lora_alpha"])
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointError(
                str(path), "must be JSON with r and lora_alpha", "none", "Name an adapter's folder."
            ) from None
        for key, plain in {"peft_type": "LORA", **_UNSUPPORTED}.items():
            value = self._config.get(key, plain)
            if (value or None) != (plain or None):
                raise CheckpointError(
                    f"{path}: {key}", f"must be {plain!r}", value, "Merge this adapter with PEFT."
                )
        self._weights = SafetensorsFolder(folder, single=WEIGHTS)
        names = [_NAME.fullmatch(name) for name in self._weights.tensors]
        unknown = [n for n, match in zip(self._weights.tensors, names, strict=True) if not match]
        self.modules = {match[1] for match in names if match}
        pairs = {(match[1], match[2]) for match in names if match}
        if unknown or not pairs or len(pairs) != 2 * len(self.modules):
            raise CheckpointError(
                str(folder / WEIGHTS),
                "must hold pairs of lora_A and lora_B",
                unknown[0] if unknown else f"{len(pairs)} of {2 * len(self.modules)} halves",
                "Merge this adapter with PEFT, or copy it again.",
            )

    def close(self) -> None:
        self._weights.__exit__()

    def check_fits(self, rules: ModelRules) -> None:
        """Refuse an adapter of another model.

        Raises:
            CheckpointError: a module that the model does not have, or of another shape.
        """
        shapes = rules.hf_shapes()
        for module in sorted(self.modules):
            size_a, size_b = (
                self._weights.tensors[f"base_model.model.{module}.lora_{half}.weight"].spec.shape
                for half in "AB"
            )
            found = (size_b[0], size_a[1])
            expected = shapes.get(f"{module}.weight")
            if found != expected or size_a[0] != size_b[1]:
                raise CheckpointError(
                    str(self.folder / WEIGHTS),
                    f"must fit the base model, where {module} is {expected or 'missing'}",
                    f"{found} of rank {size_a[0]}",
                    "Name the model that the adapter was trained on.",
                )

    def delta(self, name: str) -> torch.Tensor | None:
        """What the adapter adds to a weight, in float32; None if it leaves it alone."""
        module = name.removesuffix(".weight")
        if module not in self.modules or module == name:
            return None
        half_a, half_b = (
            self._weights.read(f"base_model.model.{module}.lora_{half}.weight").float()
            for half in "AB"
        )
        return (half_b @ half_a) * self._scale(module)

    def _scale(self, module: str) -> float:
        rank = _by_pattern(self._config.get("rank_pattern"), module, self._rank)
        alpha = _by_pattern(self._config.get("alpha_pattern"), module, self._alpha)
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)


def _by_pattern(patterns: dict[str, float] | None, module: str, default: float) -> float:
    """PEFT's rule: a pattern matches the end of a module's name, at a dot."""
    for pattern, value in (patterns or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return default


class MergedWeights(FromHF):
    """Weights with an adapter added, computed in float32 and rounded once.

    Args:
        weights: those of the base model.
        adapter: what to add.
        dtype: type of the result; None keeps that of the base model.
    """

    def __init__(self, weights: Weights, adapter: LoraAdapter, dtype: torch.dtype | None) -> None:
        self._weights, self._adapter, self._dtype = weights, adapter, dtype

    def hf(self, rule: ParamRule) -> dict[str, torch.Tensor]:
        merged = {}
        for name, weight in self._weights.hf(rule).items():
            delta = self._adapter.delta(name)
            if delta is not None:
                weight = delta.add_(weight)
            merged[name] = weight.to(self.dtype(rule))
        return merged

    def dtype(self, rule: ParamRule) -> torch.dtype:
        return self._dtype or self._weights.dtype(rule)

    def account(self, rules: ModelRules) -> list[str]:
        return self._weights.account(rules)
