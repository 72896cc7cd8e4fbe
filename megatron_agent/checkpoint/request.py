"""What a user asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from megatron_agent.checkpoint.layout import UNSPLIT, Layout
from megatron_agent.checkpoint.locate import Kind
from megatron_agent.errors import CheckpointError

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True, kw_only=True)
class Request:
    """One conversion.

    Attributes:
        source: see :func:`megatron_agent.checkpoint.locate.locate`.
        target: the folder to make.
        to: format of the target.
        layout: ranks that the files of a Megatron checkpoint are cut for. Every layout can load
            every other's checkpoint; with its own, each rank reads its own files alone.
        dtype: type of the result; None keeps that of the source.
        lora: an adapter to merge.
        hf_files: folder with config.json and tokenizer, where the source has none with it.
        shard_bytes: largest file.
    """

    source: Path
    target: Path
    to: Kind
    layout: Layout = UNSPLIT
    dtype: torch.dtype | None = None
    lora: Path | None = None
    hf_files: Path | None = None
    shard_bytes: int = 5 * 10**9

    def __post_init__(self) -> None:
        if self.to == "hf" and self.layout != UNSPLIT:
            raise CheckpointError(
                "--layout",
                "must be left out with --to hf",
                str(self.layout),
                "A Hugging Face folder has no layout; any layout can be read.",
            )


def parse_bytes(text: str) -> int:
    """Read ``5GB``.

    Raises:
        CheckpointError: another text.
    """
    match = re.fullmatch(r"([0-9]+)([KMGT]B)?", text.upper())
    if not match or int(match[1]) == 0:
        raise CheckpointError("--shard-size", "must be a number with a unit", text, "Write 5GB.")
    return int(match[1]) * _UNITS[match[2] or ""]
