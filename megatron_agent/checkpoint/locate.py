"""Which weights a folder holds, and where the files beside the weights are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from megatron_agent.checkpoint.safetensors_folder import PICKLES
from megatron_agent.checkpoint.torch_dist_metadata import METADATA
from megatron_agent.errors import CheckpointError

PARTIAL = ".partial"
TRACKER = "latest_checkpointed_iteration.txt"
CONTENTS = "ckpt_contents.json"
COMPLETE = "COMPLETE"
HF_FILES = "huggingface"

Kind = Literal["hf", "megatron"]


@dataclass(frozen=True)
class Located:
    """A checkpoint.

    Attributes:
        kind: Hugging Face's safetensors or Megatron's torch_dist.
        weights: the folder with the weights.
        hf_files: the folder with config.json, tokenizer and chat template; None if nothing near
            the weights has a config.json.
    """

    kind: Kind
    weights: Path
    hf_files: Path | None


def locate(path: Path) -> Located:
    """Find the weights in a Hugging Face folder, a torch_dist folder, Megatron's tree of
    iterations, or a checkpoint of a verl run (``global_step_<k>``, or the role's folder in it).

    Raises:
        CheckpointError: nothing of the kind, a checkpoint that is still being written, or weights
            in pickles.
    """
    if not path.is_dir():
        raise CheckpointError(str(path), "must be a folder", "none", "Check the path.")
    if path.name.endswith(PARTIAL):
        raise _unfinished(path, "the name of a conversion that has not ended")
    if (path / METADATA).is_file() or any(path.glob("*.distcp")):
        return Located("megatron", path, _hf_files(path / HF_FILES, path.parent / HF_FILES))
    if (path / TRACKER).is_file():
        return locate(_tracked(path))
    if (path / "actor").is_dir():
        _check_complete(path)
        return locate(path / "actor")
    if (path / CONTENTS).is_file():
        return _of_verl(path)
    if (path / "model").is_dir() or (path / "optimizer").is_dir():
        raise _unfinished(path, f"no {CONTENTS}, which verl writes last")
    if any(path.glob("mp_rank_*")):
        raise CheckpointError(
            str(path),
            "must be a torch_dist checkpoint",
            "mp_rank_* folders of pickles",
            "Pickles run code; they are never read. Save again with --ckpt-format torch_dist.",
        )
    patterns = ("config.json", "*.safetensors", "*.safetensors.index.json", *PICKLES)
    if any(next(path.glob(pattern), None) for pattern in patterns):
        return Located("hf", path, _hf_files(path))
    raise CheckpointError(
        str(path),
        f"must hold safetensors, {METADATA} of a torch_dist checkpoint, {TRACKER} or {CONTENTS}",
        "none of them",
        "Name a Hugging Face folder, an iteration of Megatron, or global_step_<k> of a verl run.",
    )


def _hf_files(*candidates: Path) -> Path | None:
    return next((path for path in candidates if (path / "config.json").is_file()), None)


def _tracked(path: Path) -> Path:
    text = (path / TRACKER).read_text(encoding="utf-8", errors="replace").strip()
    names: tuple[str, ...] = ("release",)
    if text.isdigit():
        names = (f"iter_{int(text):07d}", f"global_step_{int(text)}")
    for name in names:
        if (path / name).is_dir():
            return path / name
    raise CheckpointError(
        str(path / TRACKER),
        f"must name a folder beside it ({' or '.join(names)})",
        text,
        "Copy the folder too, or name an iteration itself.",
    )


def _check_complete(step: Path) -> None:
    """Our trainer declares a checkpoint whole in a file of its own; verl alone has none."""
    mark = step / COMPLETE
    if not mark.is_file():
        if any(step.parent.glob(f"*/{COMPLETE}*")):
            raise _unfinished(step, f"no {COMPLETE} file, unlike others of the run")
        return
    try:
        sizes: dict[str, int] = json.loads(mark.read_text(encoding="utf-8"))["bytes"]
    except (ValueError, KeyError, TypeError):
        raise _unfinished(step, f"a {COMPLETE} file without sizes") from None
    for name, num_bytes in sizes.items():
        file = step / name
        found = file.stat().st_size if file.is_file() else "no such file"
        if found != num_bytes:
            raise CheckpointError(
                str(file),
                f"must be {num_bytes} bytes long, as {COMPLETE} says",
                found,
                "The checkpoint changed after it was written: copy it again.",
            )


def _of_verl(role: Path) -> Located:
    try:
        contents: dict[str, Any] = json.loads((role / CONTENTS).read_text("utf-8"))["contents"]
        entry = contents["model"]
        weights, form = role / entry["path"], entry["format"]
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            str(role / CONTENTS),
            "must say where the model is",
            "nothing of a model",
            "Save with checkpoint.save_contents=[model,...].",
        ) from None
    if "peft_adapter_path" in entry:
        raise CheckpointError(
            str(role / CONTENTS),
            "must say that the model is saved whole",
            "a LoRA adapter alone",
            f"Name the base model and --lora {role / entry['peft_adapter_path']}.",
        )
    hf_files = _hf_files(role / "model" / "huggingface", weights)
    if form == "huggingface":
        return Located("hf", weights, hf_files)
    located = locate(weights)
    return Located(located.kind, located.weights, located.hf_files or hf_files)


def _unfinished(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        str(path),
        "must be a checkpoint that was written to its end",
        why,
        "It is still being written or was never finished: wait, or take another.",
    )
