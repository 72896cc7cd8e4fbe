"""Do source and result say the same? Both models run on fixed prompts, on the CPU, in float32.

Each side is loaded by the code that its users load it with: transformers reads Hugging Face
folders, Megatron's own loader reads torch_dist. So an error in this package's reading or writing,
which the comparison of values could share with the conversion, shows here.

A model that does not fit into memory is cut to some of its layers, the same ones on both sides,
the first and the last among them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch

from megatron_agent.backend.cpu import cuda_standins
from megatron_agent.checkpoint.layout import UNSPLIT
from megatron_agent.checkpoint.megatron_model import SHARDING, build_model, pretend_rank
from megatron_agent.checkpoint.output_file import output_file
from megatron_agent.checkpoint.rules import ModelRules
from megatron_agent.checkpoint.safetensors_file import SafetensorsWriter
from megatron_agent.checkpoint.safetensors_folder import SINGLE
from megatron_agent.checkpoint.side_files import copy_side_files
from megatron_agent.checkpoint.verdict import Check
from megatron_agent.checkpoint.weights import HFWeights, MegatronWeights

NUM_PROMPTS, PROMPT_LENGTH = 4, 32
TOLERANCE = 1e-3
"""Largest difference of log-probabilities. Rounding in float32 stays far below, a wrong layer does
not."""
MEMORY_SHARE = 0.4
"""Of the memory that is free; two models are compared, one after the other."""


def prompts(vocab_size: int) -> torch.Tensor:
    """Token ids of shape [NUM_PROMPTS, PROMPT_LENGTH], the same ones every time."""
    generator = torch.Generator().manual_seed(20260201)
    return torch.randint(vocab_size, (NUM_PROMPTS, PROMPT_LENGTH), generator=generator)


def choose_layers(rules: ModelRules, max_bytes: float | None = None) -> tuple[int, ...]:
    """The layers to run: all of them, or as many as fit in float32, evenly spread.

    Args:
        rules: the model.
        max_bytes: memory for one model; a share of the free memory by default.
    """
    if max_bytes is None:
        max_bytes = MEMORY_SHARE * psutil.virtual_memory().available
    sizes: dict[bool, int] = {True: 0, False: 0}
    for rule in rules.params:
        sizes[".layers." in rule.name] += 4 * torch.Size(rule.shape).numel()
    num_fit = int((max_bytes - sizes[False]) * rules.num_layers / max(1, sizes[True]))
    count = max(2, min(rules.num_layers, num_fit))
    if count >= rules.num_layers:
        return tuple(range(rules.num_layers))
    return tuple(round(i * (rules.num_layers - 1) / (count - 1)) for i in range(count))


def compare_logits(
    config: Any,
    hf_files: Path,
    sides: Mapping[str, HFWeights | MegatronWeights],
    layers: tuple[int, ...],
    dtype: torch.dtype | None = None,
    adapter: Path | None = None,
) -> Check:
    """Run both models and compare the log-probabilities of every next token.

    Call it outside of :func:`megatron_rules.model_rules`, which keeps a process group open.

    Args:
        config: of the model.
        hf_files: folder with its config.json.
        sides: "source" and "result".
        layers: see :func:`choose_layers`.
        dtype: round the weights to this type first, as the conversion did.
        adapter: merged into the source by the conversion; here PEFT does it. All layers then.
    """
    outputs = []
    for side, weights in sides.items():
        if isinstance(weights, HFWeights):
            merged = adapter if side == "source" else None
            outputs.append(_hf_log_probs(config, hf_files, weights, layers, dtype, merged))
        else:
            outputs.append(_megatron_log_probs(config, weights, layers, dtype))
    difference = float((outputs[0] - outputs[1]).abs().max())
    alike = float((outputs[0].argmax(-1) == outputs[1].argmax(-1)).float().mean())
    how = "all layers" if len(layers) == config.num_hidden_layers else f"layers {list(layers)}"
    return Check(
        "logits on fixed prompts",
        difference <= TOLERANCE,  # false for NaN, too
        f"log-probabilities differ by {difference:.1e} at most, {alike:.1%} of the first choices "
        f"agree ({how}, {NUM_PROMPTS} x {PROMPT_LENGTH} tokens)",
    )


def _hf_log_probs(
    config: Any,
    hf_files: Path,
    weights: HFWeights,
    layers: tuple[int, ...],
    dtype: torch.dtype | None,
    adapter: Path | None,
) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    folder, temporary = weights.folder.folder, None
    if len(layers) < config.num_hidden_layers or not (folder / "config.json").is_file():
        temporary = Path(tempfile.mkdtemp(prefix="layers-"))
        folder = temporary
        _write_layers(weights, hf_files, folder, layers)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            # What is added must not be added to something rounded.
            dtype=torch.float32 if adapter else dtype or torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager",
        )
    finally:
        if temporary is not None:
            shutil.rmtree(temporary)
    wrong = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    if wrong:
        return torch.full((NUM_PROMPTS, PROMPT_LENGTH, config.vocab_size), torch.nan)
    if adapter is not None:
        model = _with_adapter(model, adapter, weights, dtype)
    with torch.no_grad():
        logits = model.float().eval()(prompts(config.vocab_size)).logits
    return logits.log_softmax(-1)


def _with_adapter(model: Any, adapter: Path, weights: HFWeights, dtype: torch.dtype | None) -> Any:
    """The model with an adapter merged by PEFT, each weight rounded to the type that is written."""
    from peft import PeftModel

    merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    stored = weights.folder.tensors
    with torch.no_grad():
        for name, parameter in merged.named_parameters():
            parameter.copy_(parameter.to(dtype or stored[name].spec.dtype).float())
    return merged


def _write_layers(
    weights: HFWeights, hf_files: Path, folder: Path, layers: tuple[int, ...]
) -> None:
    """Write a model of some layers of another, for transformers to load."""
    copy_side_files(hf_files, folder, None)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = len(layers)
    if config.get("layer_types"):
        config["layer_types"] = [config["layer_types"][layer] for layer in layers]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    new_numbers = {layer: number for number, layer in enumerate(layers)}
    names = {}
    for name in weights.folder.tensors:
        head, dot, tail = name.partition(".layers.")
        number, _, rest = tail.partition(".")
        if not dot:
            names[name] = name
        elif int(number) in new_numbers:
            names[name] = f"{head}.layers.{new_numbers[int(number)]}.{rest}"
    specs = {new: weights.folder.tensors[old].spec for old, new in names.items()}
    with output_file(folder / SINGLE) as file:
        writer = SafetensorsWriter(file, specs)
        for old, new in names.items():
            writer.append(new, weights.folder.read(old))
        writer.close()


def _megatron_log_probs(
    config: Any, weights: MegatronWeights, layers: tuple[int, ...], dtype: torch.dtype | None
) -> torch.Tensor:
    cut_config = type(config).from_dict(config.to_dict() | {"num_hidden_layers": len(layers)})
    tokens = prompts(config.vocab_size)
    positions = torch.arange(PROMPT_LENGTH).expand(NUM_PROMPTS, -1)
    with pretend_rank(UNSPLIT, 0):
        model = build_model(cut_config, UNSPLIT, dtype=torch.float32, device="cpu").eval()
        with torch.no_grad(), cuda_standins.cuda_means_cpu():
            _load(model, weights.folder.folder, layers, config.num_hidden_layers)
            if dtype is not None:
                for parameter in model.parameters():
                    parameter.copy_(parameter.to(dtype).float())
            logits = model(tokens, positions, None)
    return logits[..., : config.vocab_size].float().log_softmax(-1)


def _load(model: Any, folder: Path, layers: tuple[int, ...], num_layers: int) -> None:
    """Load with Megatron's own strategy: tensors alone, since objects would be unpickled. The
    folder's metadata has been looked at by then.
    """
    from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
    from megatron.core.dist_checkpointing.mapping import apply_factory_merges
    from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy
    from megatron.core.dist_checkpointing.utils import extract_sharded_tensors

    def of_whole_model(shard: Any) -> Any:
        if ".layers." not in shard.key or not shard.prepend_axis_num:
            return shard
        return replace(
            shard,
            global_shape=(num_layers, *shard.global_shape[1:]),
            global_offset=(layers[shard.global_offset[0]], *shard.global_offset[1:]),
            axis_fragmentations=(num_layers, *shard.axis_fragmentations[1:]),
        )

    state, _, factories = load_preprocess(model.sharded_state_dict(metadata=dict(SHARDING)))
    state, _ = extract_sharded_tensors(state)
    state = dict_list_map_inplace(of_whole_model, state)
    loaded = TorchDistLoadShardedStrategy().load(state, folder)
    loaded = apply_factory_merges(loaded, factories)
    missing, unexpected = model.load_state_dict(loaded, strict=False)
    assert not unexpected and all("_extra_state" in name for name in missing), (missing, unexpected)
