"""The private names and strings of verl, torch and Megatron that the CPU backend relies on.

A test that fails here after an upgrade says which stand-in to look at, or to drop.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]

_PROBE = """
import json, sys
import megatron_agent.backend.cpu as cpu
from megatron_agent.backend.cpu import cuda_standins

registered = cpu.register()
before = sorted(name for name in ("megatron", "sglang") if name in sys.modules)
import torch
import megatron.bridge  # before the engine, to see that either may come first
import verl.workers.engine
from verl.workers.engine import EngineRegistry
from verl.plugin.platform import get_platform
from verl.utils.distributed import initialize_global_process_group_ray
from megatron.core.extensions.transformer_engine import HAVE_TE
import megatron.bridge.peft.lora_layers
import megatron.core.jit
import verl.workers.engine.megatron.transformer_impl as impl

initialize_global_process_group_ray()
signatures = {}
import inspect
for name in ("to", "forward_backward_batch", "get_per_tensor_param", "__init__"):
    signatures[name] = list(inspect.signature(getattr(impl.MegatronEngine, name)).parameters)

from megatron_agent.backend.cpu.engine import adapt_engine_config
from megatron_agent.errors import ConfigError
from verl.workers.config import McoreEngineConfig

refusals = []
for changes in ({"context_parallel_size": 2}, {"vanilla_mbridge": True}):
    try:
        adapt_engine_config(McoreEngineConfig(**changes))
    except ConfigError as error:
        refusals.append(str(error))
overrides = {"tp_comm_overlap": None, "num_layers": 3}
config = McoreEngineConfig(param_offload=True, override_transformer_config=overrides)
adapt_engine_config(config)
print("PROBE" + json.dumps({
    "refusals": refusals,
    "dtype": config.dtype,
    "param_offload": config.param_offload,
    "overrides": config.override_transformer_config,
    "registered": registered,
    "again": cpu.register(),
    "heavy_before": before,
    "platform": get_platform().device_name,
    "engines": [EngineRegistry.get_engine_cls(m, "megatron").__name__
                for m in ("language_model", "value_model")],
    "backend": torch.distributed.get_backend(),
    "have_te": HAVE_TE,
    "te_left_over": "transformer_engine" in sys.modules,
    "cuda_available": torch.cuda.is_available(),
    "current_device": str(torch.cuda.current_device()),
    "jit_fuser": megatron.core.jit.jit_fuser.__name__,
    "loader": type(impl.__loader__).__name__,
    "signatures": signatures,
}))
"""

_PLUGIN = """
from megatron_agent.backend import cpu
REGISTERED = cpu.register()
"""

_IMPORT_VERL = """
import json, sys
import verl
import mcpu_plugin
from verl.plugin.platform import PlatformRegistry
heavy = [name for name in ("megatron", "sglang", "transformer_engine") if name in sys.modules]
print("PROBE" + json.dumps({"heavy": heavy, "registered": mcpu_plugin.REGISTERED,
                            "platforms": PlatformRegistry.registered_names()}))
"""


def _run(repo_root: Path, code: str, **environment: str) -> dict[str, Any]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(repo_root), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("PROBE"))
    return json.loads(line.removeprefix("PROBE"))


@functools.cache
def _source(module_name: str) -> str:
    """Return the source of an installed module without importing it, nor its parents."""
    top = module_name.split(".")[0]
    spec = importlib.util.find_spec(top)
    assert spec is not None
    for location in spec.submodule_search_locations or ():
        path = Path(location).joinpath(*module_name.split(".")[1:])
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.exists():
                return candidate.read_text(encoding="utf-8")
    raise AssertionError(f"{module_name} is not installed")


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a trainer process looks like after the Megatron engine was imported in it."""
    rendezvous = tmp_path_factory.mktemp("probe") / "rendezvous"
    return _run(
        Path(__file__).parents[2],
        _PROBE,
        VERL_PLATFORM="cpu",
        DIST_INIT_METHOD=f"file://{rendezvous}",
        RANK="0",
        WORLD_SIZE="1",
        GLOO_SOCKET_IFNAME="lo",
    )


def test_engines_for_policy_and_critic_are_found_for_the_cpu(probe: dict[str, Any]) -> None:
    assert probe["registered"] and probe["again"]
    assert probe["platform"] == "cpu"
    assert probe["engines"] == ["CPUEngineWithLMHead", "CPUEngineWithValueHead"]


def test_registering_imports_neither_megatron_nor_sglang(probe: dict[str, Any]) -> None:
    assert probe["heavy_before"] == []


def test_verls_own_function_makes_a_plain_gloo_group(probe: dict[str, Any]) -> None:
    assert probe["backend"] == "gloo"


def test_stand_ins_leave_no_trace_that_would_be_taken_for_cuda(probe: dict[str, Any]) -> None:
    assert probe["cuda_available"] is False
    assert probe["have_te"] is False
    assert probe["te_left_over"] is False
    assert probe["current_device"] == "cpu"
    assert probe["jit_fuser"] == "noop_decorator"
    assert probe["loader"] == "SourceFileLoader"


def test_engine_config_becomes_float32_without_fused_operators(probe: dict[str, Any]) -> None:
    assert probe["dtype"] == "float32"
    assert probe["param_offload"] is False
    assert probe["overrides"]["use_cpu_initialization"] is True
    assert probe["overrides"]["gradient_accumulation_fusion"] is False


def test_what_the_user_overrides_wins_over_the_defaults(probe: dict[str, Any]) -> None:
    assert probe["overrides"]["tp_comm_overlap"] is None
    assert probe["overrides"]["num_layers"] == 3


def test_engine_settings_that_cannot_work_are_refused(probe: dict[str, Any]) -> None:
    assert probe["refusals"] == [
        "actor_rollout_ref.actor.megatron.context_parallel_size must be 1 on the CPU platform, "
        "got 2. Set it to 1.",
        "actor_rollout_ref.actor.megatron.vanilla_mbridge must be False on the CPU platform, "
        "got True. Set it to False.",
    ]


def test_overridden_engine_methods_keep_their_parameters(probe: dict[str, Any]) -> None:
    assert probe["signatures"] == {
        "__init__": [
            "self",
            "model_config",
            "engine_config",
            "optimizer_config",
            "checkpoint_config",
        ],
        "to": ["self", "device", "model", "optimizer", "grad"],
        "forward_backward_batch": ["self", "data", "loss_function", "forward_only"],
        "get_per_tensor_param": ["self", "base_sync_done", "kwargs"],
    }


def _import_verl_with_plugin(repo_root: Path, folder: Path, *, platform: str) -> dict[str, Any]:
    (folder / "mcpu_plugin.py").write_text(_PLUGIN)
    return _run(
        repo_root,
        _IMPORT_VERL,
        PYTHONPATH=f"{repo_root}{os.pathsep}{folder}",
        VERL_PLATFORM=platform,
        VERL_USE_EXTERNAL_MODULES="mcpu_plugin",
    )


def test_plugin_may_be_imported_by_verl_while_verl_is_being_imported(
    repo_root: Path, tmp_path: Path
) -> None:
    found = _import_verl_with_plugin(repo_root, tmp_path, platform="cpu")
    assert found["registered"] is True
    assert "cpu" in found["platforms"]
    assert found["heavy"] == []


def test_nothing_is_registered_when_another_platform_is_chosen(
    repo_root: Path, tmp_path: Path
) -> None:
    found = _import_verl_with_plugin(repo_root, tmp_path, platform="nvidia")
    assert found["registered"] is False
    assert "cpu" not in found["platforms"]


def test_verl_still_names_the_cpu_backend_and_the_device_backend() -> None:
    source = _source("verl.utils.distributed")
    assert source.count('f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"') == 2
    assert "torch.distributed.init_process_group(" in source


def test_torch_still_refuses_a_device_named_twice() -> None:
    from torch.distributed.distributed_c10d import BackendConfig

    with pytest.raises(ValueError, match="Duplicate device type cpu"):
        BackendConfig("cpu:gloo,cpu:gloo")


def test_verl_still_allows_only_half_precisions_in_the_engine_config() -> None:
    from verl.workers.config import McoreEngineConfig

    with pytest.raises(AssertionError, match="dtype float32 not supported"):
        McoreEngineConfig(dtype="float32")


def test_bridge_still_recognises_the_fused_layer_by_its_class_name() -> None:
    source = _source("megatron.bridge.models.conversion.param_mapping")
    assert '"TELayerNormColumnParallelLinear",' in source
    assert '_FUSED_LAYER_NORM_COLUMN_PARALLEL_SUBSTRING = "LayerNormColumnParallelLinear"' in source
    assert 'endswith("layer_norm_weight")' in source


@pytest.mark.parametrize(
    "module_name",
    [
        "megatron.bridge.models.qwen.qwen2_bridge",
        "megatron.bridge.models.qwen.qwen3_bridge",
        "megatron.bridge.models.llama.llama_bridge",
    ],
)
def test_bridge_still_maps_norms_under_transformer_engines_names(module_name: str) -> None:
    source = _source(module_name)
    assert "decoder.layers.*.self_attention.linear_qkv.layer_norm_weight" in source
    assert "decoder.layers.*.mlp.linear_fc1.layer_norm_weight" in source
    assert "decoder.final_layernorm.weight" in source


def test_lora_layers_still_imports_transformer_engine_without_asking() -> None:
    lines = _source("megatron.bridge.peft.lora_layers").splitlines()
    assert "import transformer_engine.pytorch as te" in lines


def test_megatrons_random_tracker_still_goes_through_the_two_private_functions() -> None:
    source = _source("megatron.core.tensor_parallel.random")
    assert "def _get_cuda_rng_state(" in source
    assert "def _set_cuda_rng_state(" in source
    assert "'CPU RNG state changed within GPU RNG context'" in source


def test_megatron_still_compares_tensor_types_with_cuda_names() -> None:
    assert "param.grad.type() == 'torch.cuda.FloatTensor'" in _source(
        "megatron.core.optimizer.clip_grads"
    )
    assert "model_param.type() == 'torch.cuda.FloatTensor'" in _source(
        "megatron.core.optimizer.distrib_optimizer"
    )


def test_megatrons_own_norm_still_refuses_sequence_parallelism() -> None:
    assert "sequence parallel not supported by torch LayerNorm" in _source(
        "megatron.core.transformer.torch_norm"
    )


def test_megatron_still_sums_gradients_of_marked_parameters() -> None:
    source = _source("megatron.core.distributed.finalize_model_grads")
    assert 'config.sequence_parallel and getattr(param, "sequence_parallel", False)' in source
    assert '"q_layernorm" in name or "k_layernorm" in name' in source


def test_verl_still_compiles_a_product_in_its_entropy() -> None:
    assert "@torch.compile(dynamic=True)" in _source("verl.utils.megatron.tensor_parallel")


def test_verls_platform_still_has_the_methods_ours_implements() -> None:
    from verl.plugin.platform import PlatformBase

    from megatron_agent.backend.cpu.platform import PlatformCPU

    assert not inspect.isabstract(PlatformCPU)
    own = {name for name in vars(PlatformCPU) if not name.startswith("_")}
    assert own <= set(dir(PlatformBase))
