"""The weights of a checkpoint in either format, one parameter at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch

from megatron_agent.checkpoint.locate import Located
from megatron_agent.checkpoint.rules import ModelRules, ParamRule
from megatron_agent.checkpoint.safetensors_folder import SafetensorsFolder
from megatron_agent.checkpoint.tensors import WEIGHT_DTYPES, TensorSpec
from megatron_agent.checkpoint.torch_dist_folder import TorchDistFolder
from megatron_agent.errors import CheckpointError

IGNORED_IN_HF = "rotary_emb.inv_freq"
"""A buffer that old Llama folders carry; every loader computes it."""
OPTIMIZER = "optimizer."


class Weights(Protocol):
    """Parameters on demand, in both formats."""

    def hf(self, rule: ParamRule) -> dict[str, torch.Tensor]:
        """The Hugging Face tensors of a parameter, by name."""

    def megatron(self, rule: ParamRule) -> torch.Tensor:
        """The parameter of an unsplit model, without vocabulary padding."""

    def both(self, rule: ParamRule) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """:meth:`hf` and :meth:`megatron`, read once."""

    def dtype(self, rule: ParamRule) -> torch.dtype:
        """Its type, without reading it."""

    def account(self, rules: ModelRules) -> list[str]:
        """What is missing, too much, or of a wrong shape or type; one sentence each."""


class FromHF:
    """Megatron's side of weights that are Hugging Face's."""

    def hf(self, rule: ParamRule) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def megatron(self, rule: ParamRule) -> torch.Tensor:
        return rule.to_megatron(self.hf(rule))

    def both(self, rule: ParamRule) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tensors = self.hf(rule)
        return tensors, rule.to_megatron(tensors)


class HFWeights(FromHF):
    """Weights of a Hugging Face folder."""

    def __init__(self, folder: SafetensorsFolder) -> None:
        self.folder = folder

    def hf(self, rule: ParamRule) -> dict[str, torch.Tensor]:
        return {name: self.folder.read(name) for name in rule.hf_shapes}

    def num_bytes(self, rule: ParamRule) -> int:
        return sum(self.folder.tensors[name].spec.num_bytes for name in rule.hf_shapes)

    def dtype(self, rule: ParamRule) -> torch.dtype:
        dtypes = {name: self.folder.tensors[name].spec.dtype for name in rule.hf_shapes}
        if len(set(dtypes.values())) > 1:
            raise CheckpointError(
                str(self.folder.folder),
                f"must hold one type in all of {', '.join(dtypes)}",
                ", ".join(map(str, dtypes.values())),
                "Choose the type of the result with --dtype.",
            )
        return next(iter(dtypes.values()))

    def account(self, rules: ModelRules) -> list[str]:
        specs, expected = self.folder.specs, rules.hf_shapes()
        uses = Counter(name for rule in rules.params for name in rule.hf_shapes)
        known = {name for name in specs if name.endswith(IGNORED_IN_HF)} | {rules.tied_output}
        findings = [f"{name} is missing" for name in expected if name not in specs]
        findings += [f"{name} is too much" for name in specs if name not in {*expected, *known}]
        findings += [f"{name} is used {count} times" for name, count in uses.items() if count > 1]
        findings += _wrong_shapes(specs, expected)
        findings += _wrong_types(specs, expected)
        return findings


class MegatronWeights:
    """Weights of a torch_dist checkpoint."""

    def __init__(self, folder: TorchDistFolder) -> None:
        self.folder = folder

    def hf(self, rule: ParamRule) -> dict[str, torch.Tensor]:
        return rule.to_hf(self.megatron(rule))

    def megatron(self, rule: ParamRule) -> torch.Tensor:
        ones = (1,) * len(rule.lead)
        offset = rule.lead + (0,) * len(rule.shape)
        return self.folder.read(rule.key, offset, ones + rule.shape).view(rule.shape)

    def both(self, rule: ParamRule) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tensor = self.megatron(rule)
        return rule.to_hf(tensor), tensor

    def padding(self, rule: ParamRule) -> torch.Tensor:
        """The rows below the vocabulary."""
        rows, *columns = self.folder.tensors[rule.key].spec.shape
        num_rows = rule.shape[0]
        return self.folder.read(
            rule.key, (num_rows, *[0] * len(columns)), (rows - num_rows, *columns)
        )

    def num_bytes(self, rule: ParamRule) -> int:
        return TensorSpec(self.dtype(rule), rule.shape).num_bytes

    def dtype(self, rule: ParamRule) -> torch.dtype:
        return self.folder.tensors[rule.key].spec.dtype

    def account(self, rules: ModelRules) -> list[str]:
        specs, expected = self.folder.specs, _global_shapes(rules)
        findings = [f"{key} is missing" for key in expected if key not in specs]
        findings += _wrong_types(specs, expected)
        for key, spec in specs.items():
            if key.startswith(OPTIMIZER):
                continue
            if key not in expected:
                findings.append(f"{key} is too much")
                continue
            shape, is_vocab = expected[key]
            rows_fit = is_vocab and spec.shape[0] >= shape[0] and spec.shape[1:] == shape[1:]
            if spec.shape != shape and not rows_fit:
                findings.append(f"{key} is of shape {list(spec.shape)} instead of {list(shape)}")
        return findings


class CastWeights:
    """Weights in another type."""

    def __init__(self, weights: Weights, dtype: torch.dtype) -> None:
        self._weights, self._dtype = weights, dtype

    def hf(self, rule: ParamRule) -> dict[str, torch.Tensor]:
        return {name: t.to(self._dtype) for name, t in self._weights.hf(rule).items()}

    def megatron(self, rule: ParamRule) -> torch.Tensor:
        return self._weights.megatron(rule).to(self._dtype)

    def both(self, rule: ParamRule) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tensors, tensor = self._weights.both(rule)
        return {n: t.to(self._dtype) for n, t in tensors.items()}, tensor.to(self._dtype)

    def dtype(self, rule: ParamRule) -> torch.dtype:
        return self._dtype

    def account(self, rules: ModelRules) -> list[str]:
        return self._weights.account(rules)


@contextmanager
def open_weights(located: Located) -> Iterator[HFWeights | MegatronWeights]:
    """Open a checkpoint; reading works inside the block.

    Raises:
        CheckpointError: see :class:`SafetensorsFolder` and :class:`TorchDistFolder`.
    """
    if located.kind == "hf":
        with SafetensorsFolder(located.weights) as hf_folder:
            yield HFWeights(hf_folder)
    else:
        with TorchDistFolder(located.weights) as folder:
            yield MegatronWeights(folder)


def _wrong_shapes(
    specs: Mapping[str, TensorSpec], expected: Mapping[str, tuple[int, ...]]
) -> list[str]:
    return [
        f"{name} is of shape {list(specs[name].shape)} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in specs and specs[name].shape != shape
    ]


def _wrong_types(specs: Mapping[str, TensorSpec], expected: Iterable[str]) -> list[str]:
    return [
        f"{name} is of type {str(specs[name].dtype).removeprefix('torch.')}"
        for name in expected
        if name in specs and specs[name].dtype not in WEIGHT_DTYPES
    ]


def _global_shapes(rules: ModelRules) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Shapes of the global tensors, from the last place in each; and whether rows may be added."""
    shapes: dict[str, tuple[tuple[int, ...], bool]] = {}
    for rule in sorted(rules.params, key=lambda rule: rule.lead):
        extent = tuple(place + 1 for place in rule.lead)
        shapes[rule.key] = (extent + rule.shape, rule.is_vocab)
    return shapes
