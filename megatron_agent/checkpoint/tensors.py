"""What is known of a tensor without reading it, and bytes in and out of tensors."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from megatron_agent.errors import CheckpointError

FLOAT_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
WEIGHT_DTYPES = {*FLOAT_DTYPES.values(), torch.float64}
"""Whatever else a checkpoint stores is quantized, or is no model."""


@dataclass(frozen=True)
class TensorSpec:
    """Type and shape of a tensor.

    Example:
        >>> TensorSpec(torch.bfloat16, (3, 4)).num_bytes
        24
    """

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def empty(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype)


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor, without a copy; writing to it writes to the tensor."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def read_into(tensor: torch.Tensor, file_no: int, start: int, path: Path) -> None:
    """Fill a contiguous tensor with the bytes of a file.

    The file is read, not mapped: mapped pages count as memory of this process until it ends, and
    a file that shrinks under a mapping kills the process instead of raising an error.

    Raises:
        CheckpointError: the file ends too early.
    """
    remaining = as_bytes(tensor)
    while remaining:
        count = os.preadv(file_no, [remaining], start)
        if count == 0:
            raise CheckpointError(
                str(path),
                "must be as long as its header says",
                f"{len(remaining)} bytes too few",
                "The file is truncated: copy or download it again.",
            )
        remaining, start = remaining[count:], start + count


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether type, shape and every bit agree, those of NaN and of negative zero too."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    # In words of 8 bytes, where the size allows it, three times as fast as in those of 2.
    word = torch.int64 if first.nbytes % 8 == 0 else torch.uint8
    one, other = (tensor.contiguous().reshape(-1).view(word) for tensor in (first, second))
    return torch.equal(one, other)


def num_not_finite(tensor: torch.Tensor) -> int:
    """How many elements are NaN or infinite."""
    if not tensor.is_floating_point() or not tensor.numel():
        return 0
    # Fifty times as fast as asking every number, and NaN wins over all others in both.
    if all(torch.isfinite(extreme) for extreme in torch.aminmax(tensor)):
        return 0
    return int((~torch.isfinite(tensor)).sum())


def check_finite(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor with NaN or infinity.

    Raises:
        CheckpointError: what of it is not finite.
    """
    count = num_not_finite(tensor)
    if count:
        raise CheckpointError(
            name,
            f"must be finite in {str(tensor.dtype).removeprefix('torch.')}",
            f"{count} of {tensor.numel()} numbers that are NaN or infinite",
            "The model is broken: take another checkpoint."
            if tensor.isnan().any()
            else "The model is broken, or too large for this type: take another --dtype, or "
            "another checkpoint.",
        )
