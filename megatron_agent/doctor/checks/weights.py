"""The model's weights and architecture, from the headers of its files: no tensor is read."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import Finding, error, reason
from megatron_agent.doctor.registry import check

CPU_ARCHITECTURES = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
"""What `megatron_agent.backend.cpu.layer_spec` builds."""
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100 << 20
"""The format's own limit."""

_AGAIN = "Make or download the model again."
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_BRIDGE_SOURCE = re.compile(r"source=[\"']?(\w+)")


@check("model", "Megatron can build the model")
def check_architecture(case: RunCase) -> Iterator[Finding]:
    """The architecture is one that Megatron-Bridge, and on a CPU our layers, know."""
    case.existing_model_folder()
    config = case.model_config
    if not config:
        return  # a finding of the configuration
    names = config.get("architectures") or []
    name = names[0] if isinstance(names, list) and names else None
    known = CPU_ARCHITECTURES if case.device == "cpu" else bridge_architectures()
    if known and name not in known:
        where = "on a CPU" if case.device == "cpu" else "to Megatron-Bridge"
        problem = f"must name an architecture that is known {where} ({_some(known)}), got {name!r}"
        yield error("config.json", problem, "Use another model, or another cluster.")
    if case.config_failure is not None:
        problem = f"must be what transformers reads ({reason(case.config_failure)})"
        yield error("config.json", problem, "Mend it, or download it again.")
    if "auto_map" in config and not case.values.get("actor_rollout_ref.model.trust_remote_code"):
        problem = "must not need code of its own (auto_map), which this run does not trust"
        remedy = "Use a model that transformers knows, or read its code and trust it."
        yield error("config.json", problem, remedy)
    if "quantization_config" in config:
        problem = "must not be quantized: Megatron trains whole numbers of bf16, fp16 or float32"
        yield error("config.json", problem, "Use the model that it was made from.")


@check("weights", "the weights are complete, and have the layers and the embedding of config.json")
def check_weights(case: RunCase) -> Iterator[Finding]:
    """Shards named by the index, their length; layers, and rows and columns of the embedding."""
    folder = case.existing_model_folder()
    weight_map = case.model_json(INDEX_FILE).get("weight_map")
    wanted = set(weight_map.values()) if isinstance(weight_map, Mapping) else set()
    missing = sorted(name for name in wanted if not (folder / str(name)).is_file())
    if missing:
        yield error(INDEX_FILE, f"names files that are not there ({_some(missing)})", _AGAIN)
    shapes: dict[str, tuple[int, ...]] = {}
    are_all_read = not missing
    for path in sorted(folder.glob("*.safetensors")):
        try:
            own_shapes, expected = read_header(path)
        except ValueError as fault:
            are_all_read = False
            yield error(path.name, f"must be a whole safetensors file ({fault})", _AGAIN)
            continue
        shapes |= own_shapes
        num_bytes = path.stat().st_size
        if num_bytes != expected:
            sizes = f"{num_bytes} bytes, its header says {expected}"
            yield error(path.name, f"must be a whole safetensors file ({sizes})", _AGAIN)
    yield from _unlike_config(case.model_config, shapes, are_all=are_all_read)


def _unlike_config(
    config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], *, are_all: bool
) -> Iterator[Finding]:
    text_config = config.get("text_config")
    sizes = text_config if isinstance(text_config, Mapping) else config
    layers = {int(found[1]) for name in shapes if (found := _LAYER.search(name))}
    num_layers = sizes.get("num_hidden_layers")
    if are_all and layers and isinstance(num_layers, int) and layers != set(range(num_layers)):
        problem = f"must match the weights, which have {len(layers)} layers, got {num_layers}"
        yield error("config.json: num_hidden_layers", problem, _AGAIN)
    embedding = next((s for n, s in shapes.items() if n.endswith("embed_tokens.weight")), None)
    stated_sizes = (("vocab_size", "rows"), ("hidden_size", "columns"))
    for size, (key, words) in zip(embedding or (), stated_sizes, strict=False):
        stated = sizes.get(key)
        if isinstance(stated, int) and stated != size:
            problem = f"must match the embedding, which has {size} {words}, got {stated}"
            yield error(f"config.json: {key}", problem, _AGAIN)


def read_header(path: Path) -> tuple[dict[str, tuple[int, ...]], int]:
    """Tensor names and shapes of a safetensors file, and the bytes that it should have.

    Raises:
        ValueError: the file is not one.
    """
    num_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if num_bytes < 8 or header_bytes > min(num_bytes - 8, MAX_HEADER_BYTES):
            raise ValueError(f"{num_bytes} bytes are too few for its header")
        try:
            header = json.loads(file.read(header_bytes))
        except ValueError as fault:
            raise ValueError(f"its header is no JSON: {fault}") from fault
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    try:
        data_bytes = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        shapes = {name: tuple(entry["shape"]) for name, entry in tensors.items()}
    except (KeyError, TypeError, IndexError) as fault:
        raise ValueError("its header does not describe tensors") from fault
    return shapes, 8 + header_bytes + data_bytes


def bridge_architectures() -> tuple[str, ...]:
    """Architectures that the installed Megatron-Bridge registers, read from its source text:
    importing it takes many seconds. Empty when it is not installed.
    """
    try:
        spec = importlib.util.find_spec("megatron.bridge")
    except ModuleNotFoundError:
        return ()
    if spec is None or not spec.submodule_search_locations:
        return ()
    models = Path(next(iter(spec.submodule_search_locations))) / "models"
    texts = (path.read_text(encoding="utf-8") for path in models.rglob("*_bridge.py"))
    return tuple(sorted({name for text in texts for name in _BRIDGE_SOURCE.findall(text)}))


def _some(names: list[str] | tuple[str, ...], num: int = 4) -> str:
    more = f" and {len(names) - num} more" if len(names) > num else ""
    return f"{', '.join(names[:num])}{more}"
