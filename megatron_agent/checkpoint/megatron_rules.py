"""What Megatron-Bridge and Megatron say about a model: how its tensors map, and who holds what.

The model is asked, for every rank of a layout in turn; nothing about names, shapes or splits is
written down here a second time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from megatron_agent.checkpoint.layout import UNSPLIT, Layout
from megatron_agent.checkpoint.megatron_model import SHARDING, build_model, pretend_rank
from megatron_agent.checkpoint.rules import ModelRules, ParamRule, Piece, RankContents
from megatron_agent.errors import CheckpointError

_NORM = re.compile(r"(.*layernorm)\.weight")
_QKV_STATE = "self_attention.linear_qkv._extra_state"
_CORE_STATE = "self_attention.core_attention._extra_state"


@contextlib.contextmanager
def model_rules(config: Any) -> Iterator[ModelRules]:
    """The rules of a model; they work inside the block.

    Raises:
        CheckpointError: Megatron-Bridge maps the model only in part.
    """
    with pretend_rank(UNSPLIT, 0):
        model = build_model(config, UNSPLIT)
        places = {name: shards[0] for name, shards in _sharded_tensors(model)}
        rules = [_rule(task, model, places) for task in _tasks(config, model)]
        _take_off_meta(model)
        mapped = {rule.name for rule in rules}
        tied = bool(model.share_embeddings_and_output_weights)
        unmapped = sorted(places.keys() - mapped)
        if unmapped:
            raise CheckpointError(
                "config.json",
                "must describe a model that Megatron-Bridge maps as a whole",
                f"nothing for {unmapped[0]} and {len(unmapped) - 1} more",
                "Use a Qwen2, Qwen3, Qwen3-MoE or Llama model.",
            )
        yield ModelRules(
            params=tuple(sorted(rules, key=_model_order)),
            tied_output="lm_head.weight" if tied else None,
            num_layers=config.num_hidden_layers,
            num_experts=int(model.config.num_moe_experts or 0),
            vocab_size=config.vocab_size,
        )


def rank_contents(config: Any, layout: Layout) -> list[RankContents]:
    """Return what each rank of a layout writes to a checkpoint."""
    from megatron.core import parallel_state

    contents = []
    for rank in range(layout.num_ranks):
        with pretend_rank(layout, rank):
            model = build_model(config, layout)
            pieces = [
                _piece(shard)
                for _, shards in _sharded_tensors(model)
                for shard in shards
                if _is_main_replica(shard)
            ]
            stage = parallel_state.get_pipeline_model_parallel_rank()
            contents.append(RankContents(stage, tuple(pieces), _object_keys(model)))
    return contents


def _tasks(config: Any, model: Any) -> list[Any]:
    import transformers
    from megatron.bridge.models.conversion.model_bridge import get_model_bridge

    architecture = getattr(transformers, config.architectures[0])
    bridge = get_model_bridge(architecture, hf_config=config)
    return [task for task in bridge.build_conversion_tasks(config, [model]) if task is not None]


def _rule(task: Any, model: Any, places: Mapping[str, Any]) -> ParamRule:
    shard, mapping, module = places[task.param_name], task.mapping, task.megatron_module

    def to_hf(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        return mapping.megatron_to_hf(tensor, module)

    def to_megatron(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        names = mapping.hf_param
        if isinstance(names, str):
            return mapping.hf_to_megatron(tensors[names], module)
        return mapping.hf_to_megatron({part: tensors[name] for part, name in names.items()}, module)

    hf_shapes = {
        name: tuple(tensor.shape) for name, tensor in to_hf(task.param_weight.detach()).items()
    }
    return ParamRule(
        name=task.global_param_name,
        key=shard.key,
        lead=tuple(shard.global_offset[: shard.prepend_axis_num]),
        shape=tuple(task.param_weight.shape),
        is_vocab=bool(shard.allow_shape_mismatch),
        hf_shapes=hf_shapes,
        to_hf=to_hf,
        to_megatron=to_megatron,
    )


def _take_off_meta(model: Any) -> None:
    """Give parameters that look at a single number the place of those without memory.

    Some mappings send what they translate to the device of the module it belongs to, and a tensor
    that was sent to the meta device has lost its numbers.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            shown = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
            setattr(module, name, torch.nn.Parameter(shown, requires_grad=False))


def _model_order(rule: ParamRule) -> tuple[int, tuple[int, ...], str]:
    numbers = tuple(map(int, re.findall(r"\.(\d+)\.", rule.name)))
    room = 0 if rule.name.startswith("embedding") else 3 if "output_layer" in rule.name else 2
    return (1 if numbers else room), numbers[:1], rule.name


def _sharded_tensors(model: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield each parameter's name and the parts of global tensors that it is."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

    for name, value in model.sharded_state_dict(metadata=dict(SHARDING)).items():
        if isinstance(value, ShardedTensor):
            yield name, [value]
        elif isinstance(value, ShardedTensorFactory):
            yield name, list(value.build())


def _is_main_replica(shard: Any) -> bool:
    replica = shard.replica_id
    return not any(replica) if isinstance(replica, tuple) else replica == 0


def _piece(shard: Any) -> Piece:
    num_lead = shard.prepend_axis_num
    return Piece(
        key=shard.key,
        global_shape=tuple(shard.global_shape),
        lead=tuple(shard.global_offset[:num_lead]),
        offset=tuple(shard.global_offset[num_lead:]),
        sizes=tuple(shard.local_shape),
    )


def _object_keys(model: Any) -> tuple[str, ...]:
    """Keys of the objects that a loader may ask for beside the tensors.

    Each layer of Transformer Engine has an extra state, empty without FP8, and Megatron's loader
    fails when a key is not there. The layers in use here know those of the linear ones; those of
    norms and of the attention itself are made up alike.
    """
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    keys = []
    for value in model.sharded_state_dict(metadata=dict(SHARDING)).values():
        if isinstance(value, ShardedObject) and _is_main_replica(value):
            keys.append(value.unique_key)
            if _QKV_STATE in value.unique_key:
                keys.append(value.unique_key.replace(_QKV_STATE, _CORE_STATE))
    for _, shards in _sharded_tensors(model):
        norm = _NORM.fullmatch(shards[0].key)
        if norm and _is_main_replica(shards[0]):
            shape = shards[0].global_shape[: shards[0].prepend_axis_num] or (1,)
            offset = shards[0].global_offset[: shards[0].prepend_axis_num] or (0,)
            place = f"{'.'.join(map(str, offset))}_{'.'.join(map(str, shape))}"
            keys.append(f"{norm[1]}._extra_state/shard_{place}")
    return tuple(keys)
