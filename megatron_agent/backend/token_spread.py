"""One number per row becomes one per token, where TransferQueue keeps the rows.

A field with one tensor per row travels as one message part per row, packed and unpacked one by one,
which for 3,072 rows took most of the advantage phase. Here a field travels as one small table,
whatever the lengths of the rows, and each storage unit makes the rows' tensors out of its part of
it: TransferQueue lets a put bring such a function with it (``data_parser``).

The storage units import this module, and nothing of verl with it.
"""

from __future__ import annotations

import numpy as np
import torch


def table(value_N: np.ndarray, num_tokens_N: np.ndarray) -> torch.Tensor:
    """What :func:`tokens_of_rows` makes tensors of: (N, 2), each row's value and token count.

    A tensor has one type, and TransferQueue wants that of the field: float32, which holds token
    counts up to 2**24 exactly.
    """
    return torch.from_numpy(np.stack([value_N, num_tokens_N], axis=1).astype(np.float32))


def tokens_of_rows(field_of_name: dict[str, torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """Give every token of a row the row's value.

    Args:
        field_of_name: tables of (n, 2) for the n rows of one storage unit.

    Returns:
        For each field n tensors, (tokens of the row,) each. Each has memory of its own: of views
        into one block, a checkpoint of the storage unit would hold the block once for each row.
    """
    return {
        name: [
            torch.full((int(num_tokens),), value, dtype=field.dtype)
            for value, num_tokens in field.tolist()
        ]
        for name, field in field_of_name.items()
    }
