"""The folder of a conversion that has not ended, and what of it is done already."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from megatron_agent.atomic_file import atomic_file, sync_to_disk
from megatron_agent.checkpoint.locate import PARTIAL
from megatron_agent.checkpoint.output_file import FileRecord
from megatron_agent.checkpoint.targets import BatchResult
from megatron_agent.checkpoint.torch_dist_metadata import WrittenItem
from megatron_agent.errors import CheckpointError
from megatron_agent.writable import nearest_existing, write_fault

PROGRESS = ".progress"
IDENTITY = "identity.json"
DISK_MARGIN = 1.02


class PartialFolder:
    """``<target>.partial``, which becomes the target when all is written and checked.

    Args:
        target: the folder to make.
        identity: what makes two conversions the same; only the same one goes on.
    """

    def __init__(self, target: Path, identity: Mapping[str, Any]) -> None:
        self.target = target
        self.root = target.with_name(target.name + PARTIAL)
        self._identity = json.loads(json.dumps(identity))

    def check(self, source: Path, num_bytes: Mapping[str, int]) -> None:
        """Refuse to begin where something else is, or where the target cannot be.

        Args:
            source: what is converted.
            num_bytes: of each batch.

        Raises:
            CheckpointError: the target exists, or the folder is of another conversion; it lies in
                the source, or where nothing can be written; or the disk is too full.
        """
        if self.target.resolve().is_relative_to(source.resolve()):
            raise CheckpointError(
                str(self.target),
                f"must not lie in the source, {source}",
                "it does",
                "Name another: what is converted is left as it is.",
            )
        if self.target.exists():
            raise CheckpointError(
                str(self.target), "must not exist", "it does", "Name another, or remove it."
            )
        identity = self.root / PROGRESS / IDENTITY
        if self.root.exists() and (
            not identity.is_file() or json.loads(identity.read_text()) != self._identity
        ):
            raise CheckpointError(
                str(self.root),
                "must be of the same conversion to go on with",
                "one of other files or options",
                "Remove it, or name another target.",
            )
        waiting = [size for batch, size in num_bytes.items() if self.result(batch) is None]
        _check_disk(self.target, sum(waiting))

    def open(self) -> None:
        """Make the folder, or go on with the one that an interrupted conversion left."""
        progress = self.root / PROGRESS
        if not (progress / IDENTITY).is_file():
            progress.mkdir(parents=True, exist_ok=True)
            with atomic_file(progress / IDENTITY) as file:
                json.dump(self._identity, file, indent=1)

    def result(self, batch: str) -> BatchResult | None:
        """What a finished batch left; None if it has to be written."""
        path = self.root / PROGRESS / f"{batch}.json"
        if not path.is_file():
            return None
        stored = json.loads(path.read_text(encoding="utf-8"))
        files = {name: FileRecord(**record) for name, record in stored["files"].items()}
        for name, record in files.items():
            file = self.root / name
            if not file.is_file() or file.stat().st_size != record.num_bytes:
                return None
        return BatchResult(files, tuple(_item(item) for item in stored["items"]))

    def add(self, batch: str, result: BatchResult) -> None:
        """Remember that a batch is finished, once its files are on disk."""
        for name in result.files:
            sync_to_disk(self.root / name)
        with atomic_file(self.root / PROGRESS / f"{batch}.json") as file:
            json.dump(asdict(result), file)

    def publish(self) -> None:
        """Give the folder its name; everything in it is on disk before.

        The progress goes last: without it a conversion that is killed in here would be lost.
        """
        for path in sorted(self.root.rglob("*")):
            sync_to_disk(path)
        sync_to_disk(self.root)
        self.root.rename(self.target)
        shutil.rmtree(self.target / PROGRESS)
        sync_to_disk(self.target.parent)


def _check_disk(target: Path, num_bytes: int) -> None:
    place = nearest_existing(target.parent)
    if write_fault(place):
        raise CheckpointError(
            str(target),
            "must be in a folder that can be written to",
            str(place),
            "Name another target, or change the rights of that folder.",
        )
    free = shutil.disk_usage(place).free
    if free < num_bytes * DISK_MARGIN:
        found = f"{free / 1e9:.2f} GB free where {num_bytes / 1e9:.2f} GB are needed"
        raise no_space(target, found)


def no_space(path: Path, found: str) -> CheckpointError:
    """The error of a disk that is too full."""
    return CheckpointError(
        str(path),
        "must have space on its disk",
        found,
        "Make space and run the same command again.",
    )


def _item(stored: Mapping[str, Any]) -> WrittenItem:
    places = {
        key: None if stored[key] is None else tuple(stored[key]) for key in ("offset", "sizes")
    }
    return WrittenItem(**{**stored, **places})
