"""``conversion.json``: where a checkpoint came from, and the checksums of its files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from megatron_agent.atomic_file import atomic_file
from megatron_agent.checkpoint.output_file import FileRecord, hash_file
from megatron_agent.checkpoint.partial import PROGRESS
from megatron_agent.checkpoint.targets import BatchResult
from megatron_agent.errors import CheckpointError

MANIFEST = "conversion.json"
FORMAT = 1


def write_manifest(root: Path, about: Mapping[str, Any], results: Iterable[BatchResult]) -> None:
    """Write the manifest of everything below ``root``.

    Args:
        root: the folder of the conversion.
        about: what was asked for, and by which versions it was done.
        results: of the batches; other files are hashed now.
    """
    files = {name: record for result in results for name, record in result.files.items()}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        # An earlier try may have left its own manifest, which is about to be replaced.
        if path.is_file() and name not in {*files, MANIFEST} and not name.startswith(PROGRESS):
            files[name] = hash_file(path)
    manifest = {"format": FORMAT, **about, "files": {n: asdict(r) for n, r in files.items()}}
    with atomic_file(root / MANIFEST) as file:
        file.write(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def read_manifest(root: Path) -> dict[str, Any] | None:
    """Return the manifest; None if there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    path = root / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or not isinstance(manifest["files"], dict):
            raise ValueError
        return manifest
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            str(path), f"must be a manifest of format {FORMAT}", "something else", "Convert again."
        ) from None


def changed_files(root: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Files that are gone or not what they were; one sentence each."""
    findings = []
    for name, stored in manifest["files"].items():
        path = root / name
        if not path.is_file():
            findings.append(f"{name} is missing")
        elif hash_file(path) != FileRecord(**stored):
            findings.append(f"{name} has another checksum")
    return findings
