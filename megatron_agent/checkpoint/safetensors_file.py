"""Writing safetensors files tensor by tensor.

The header comes first in the file, and everything in it is known before the first tensor is. The
library would take a whole file's tensors at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from megatron_agent.atomic_file import atomic_file
from megatron_agent.checkpoint.output_file import OutputFile
from megatron_agent.checkpoint.safetensors_folder import DTYPE_NAMES, INDEX
from megatron_agent.checkpoint.tensors import TensorSpec, as_bytes


class SafetensorsWriter:
    """One file.

    Args:
        file: an empty file.
        specs: the tensors, in the order in which :meth:`append` gets them.
    """

    def __init__(self, file: OutputFile, specs: Mapping[str, TensorSpec]) -> None:
        self._file = file
        self._waiting = dict(specs)
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        start = 0
        for name, spec in specs.items():
            header[name] = {
                "dtype": DTYPE_NAMES[spec.dtype],
                "shape": list(spec.shape),
                "data_offsets": [start, start + spec.num_bytes],
            }
            start += spec.num_bytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
        file.write(len(text).to_bytes(8, "little") + text)

    def append(self, name: str, tensor: torch.Tensor) -> None:
        expected = next(iter(self._waiting), None)
        assert name == expected, (name, expected)
        spec = self._waiting.pop(name)
        assert (tensor.dtype, tuple(tensor.shape)) == (spec.dtype, spec.shape), (name, tensor.shape)
        self._file.write(as_bytes(tensor.contiguous()))

    def close(self) -> None:
        assert not self._waiting, f"{len(self._waiting)} tensors were never written"


def write_index(folder: Path, files: Mapping[str, Mapping[str, TensorSpec]]) -> None:
    """Write which of several files holds which tensor.

    Args:
        folder: where the files are.
        files: file name -> its tensors.
    """
    num_bytes = sum(spec.num_bytes for specs in files.values() for spec in specs.values())
    weight_map = {name: file for file, specs in files.items() for name in specs}
    index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
    with atomic_file(folder / INDEX) as file:
        file.write(json.dumps(index, indent=2, sort_keys=True) + "\n")
