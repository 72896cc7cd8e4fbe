"""Conversions of tiny models: every layout to every other, bit by bit; errors are caught.

One job of four processes (``convert_job.py``) runs all cases; the tests read its results.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_agent.backend.cpu.prefork.protocol import PYTHON_VARIABLE

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

logger = logging.getLogger(__name__)

JOB = Path(__file__).with_name("convert_job.py")
NUM_PROCESSES = 4
NUM_CONVERTING = 2
JOB_TIMEOUT_S = 1700

DENSE = [f"{family}-{tie}" for family in ("qwen2", "qwen3", "llama") for tie in ("untied", "tied")]
EXPERTS = ["qwen3moe-untied", "qwen3moe-tied"]
MODELS = [*DENSE, *EXPERTS]
LAYOUTS = ("TP1", "TP2", "TP4", "PP2", "TP2xPP2", "EP2")
NUM_LAYERS, NUM_EXPERTS = 2, 4
# An untied vocabulary that 4 does not divide: padded under TP4, and nowhere else.
VOCAB = {"untied": 322, "tied": 320}
SILENT = "qwen3moe-tied"
"""The model whose exports are spoiled: tied, and with experts."""


def layouts_of(model: str) -> list[str]:
    return [layout for layout in LAYOUTS if layout != "EP2" or model in EXPERTS]


PAIRS = [
    (model, *pair) for model in MODELS for pair in itertools.permutations(layouts_of(model), 2)
]
CELLS = [(model, layout) for model in MODELS for layout in layouts_of(model)]


def make_model(name: str, folder: Path) -> None:
    """Write a random bfloat16 model; every norm and bias is random, too."""
    from transformers import (
        AutoModelForCausalLM,
        LlamaConfig,
        Qwen2Config,
        Qwen3Config,
        Qwen3MoeConfig,
    )

    family, tie = name.split("-")
    shape: dict[str, Any] = {
        "vocab_size": VOCAB[tie],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tie == "tied",
    }
    if family != "qwen2":
        shape["head_dim"] = 8
    if family == "qwen3moe":
        shape |= {
            "num_experts": NUM_EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "norm_topk_prob": True,
        }
    config_class = {
        "qwen2": Qwen2Config,
        "qwen3": Qwen3Config,
        "qwen3moe": Qwen3MoeConfig,
        "llama": LlamaConfig,
    }[family]
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(config_class(**shape))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                parameter.mul_(5)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")


@dataclass
class Results:
    """What the job did, and where."""

    folder: Path
    converted: dict[str, dict[str, Any]]

    def hf(self, model: str) -> Path:
        return self.folder / "models" / model

    def of_layout(self, model: str, layout: str) -> Path:
        return self.folder / model / layout

    def rank_results(self, name: str) -> list[dict[str, Any]]:
        paths = sorted(self.folder.glob(f"{name}.rank*.json"))
        return [json.loads(path.read_text()) for path in paths]


Spoil = Callable[[dict[str, torch.Tensor]], Any]


def _padding_rows(tensors: dict[str, torch.Tensor]) -> None:
    embedding = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = torch.cat([embedding, embedding.new_zeros(64, 32)])


def _stale_output_layer(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = torch.randn(VOCAB["tied"], 32).bfloat16()


def _dropped_experts(tensors: dict[str, torch.Tensor]) -> None:
    for name in [n for n in tensors if any(f".experts.{e}." in n for e in (2, 3))]:
        del tensors[name]


def _experts_of_rank_0_twice(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        for expert in (2, 3):
            if f".experts.{expert}." in name:
                first = name.replace(f".experts.{expert}.", f".experts.{expert - 2}.")
                tensors[name] = tensors[first].clone()


def _garbage_after_tp4(tensors: dict[str, torch.Tensor]) -> None:
    """Query heads of four ranks joined as if they were of one."""
    query = tensors["model.layers.0.self_attn.q_proj.weight"]
    shuffled = query.view(4, 2, 8, 32).transpose(0, 1).reshape(query.shape)
    tensors["model.layers.0.self_attn.q_proj.weight"] = shuffled.contiguous()


SPOILED: dict[str, tuple[Spoil, str]] = {
    "padding-rows": (_padding_rows, "model.embed_tokens.weight is of shape [384, 32]"),
    "stale-output-layer": (_stale_output_layer, "lm_head.weight differs from the embedding"),
    "dropped-experts": (_dropped_experts, "4 in a layer, 8 of 16 weights of experts"),
    "experts-twice": (_experts_of_rank_0_twice, "model.layers.0.mlp.experts.2"),
    "tp4-garbage": (_garbage_after_tp4, "model.layers.0.self_attn.q_proj.weight"),
    "empty": (lambda tensors: tensors.clear(), "model.embed_tokens.weight is missing"),
}


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory, standing_server: dict[str, str]
) -> Iterator[Results]:
    folder = tmp_path_factory.mktemp("convert")
    for model in MODELS:
        make_model(model, folder / "models" / model)
    _spoil(folder)
    _make_adapter(folder)
    spec = folder / "spec.json"
    spec.write_text(json.dumps(_spec(folder)))
    processes = _start(spec, folder, standing_server)
    try:
        _wait(processes, folder)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    converted = {
        name: result
        for part in ("first", "last")
        for path in folder.glob(f"{part}.*.json")
        for name, result in json.loads(path.read_text()).items()
    }
    yield Results(folder, converted)


def _spec(folder: Path) -> dict[str, Any]:
    def case(name: str, source: Path, target: Path, to: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "source": str(source), "target": str(target), "to": to, **more}

    ranks: list[dict[str, Any]] = []
    # All conversions of a model in one process and in this order: one makes the next one's source.
    workers = {model: number % NUM_CONVERTING for number, model in enumerate(MODELS)}
    firsts: list[list[dict[str, Any]]] = [[] for _ in range(NUM_CONVERTING)]
    lasts: list[list[dict[str, Any]]] = [[] for _ in range(NUM_CONVERTING)]
    for model, layout in CELLS:
        first, last = firsts[workers[model]], lasts[workers[model]]
        hf, here = folder / "models" / model, folder / model
        # Running both models is checked once for each; their weights are, for each cell.
        logits = {"logits": layout == "TP2xPP2"}
        first.append(
            case(f"hf-{model}-{layout}", hf, here / layout, "megatron", layout=layout, **logits)
        )
        first.append(case(f"{model}-{layout}-hf", here / layout, here / f"{layout}-hf", "hf"))
        name, saved = f"ranks-{model}-{layout}", here / f"saved-{layout}"
        num_ranks = {"TP1": 1, "TP4": 4, "TP2xPP2": 4}.get(layout, 2)
        ranks.append(
            {
                "name": name,
                "layout": layout,
                "num_ranks": num_ranks,
                "hf": str(hf),
                "converted": str(here / layout / "iter_0000000"),
                "saved": str(saved),
            }
        )
        last.append(
            case(f"saved-{model}-{layout}", saved, here / f"{layout}-back", "hf", hf=str(hf))
        )
    for model, source, target in PAIRS:
        here = folder / model
        name = f"{model}-{source}-{target}"
        paths = here / source, here / f"{source}-{target}"
        firsts[workers[model]].append(case(name, *paths, "megatron", layout=target, verdict=False))
    first = firsts[workers[SILENT]]
    silent, tp1 = folder / "models" / SILENT, folder / SILENT / "TP1"
    for name in SPOILED:
        target = folder / "spoiled" / name
        first.append(case(f"spoiled-{name}", tp1, target, "hf", verify_only=True))
    first += [
        case("verify", silent, tp1, "megatron", verify_only=True, logits=True),
        case("float32", silent, folder / "float32", "hf", dtype="float32", logits=True),
        case("shards", tp1, folder / "shards", "hf", shard_bytes=20_000, logits=True),
        case("dry-run", silent, folder / "dry-run", "megatron", layout="EP2", dry_run=True),
        case(
            "architecture", folder / "models" / DENSE[0], folder / "x", "megatron", hf=str(silent)
        ),
        case("layout", silent, folder / "x", "megatron", layout="TP3"),
        case(
            "lora",
            folder / "models" / DENSE[0],
            folder / "merged",
            "hf",
            lora=str(folder / "adapter"),
            dtype="float32",
            logits=True,
        ),
    ]
    return {
        "out": str(folder),
        "num_processes": NUM_PROCESSES,
        "first": firsts,
        "ranks": ranks,
        "last": lasts,
    }


def _spoil(folder: Path) -> None:
    for name, (spoil, _) in SPOILED.items():
        target = folder / "spoiled" / name
        target.mkdir(parents=True)
        tensors = load_file(folder / "models" / SILENT / "model.safetensors")
        spoil(tensors)
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
        config = folder / "models" / SILENT / "config.json"
        (target / "config.json").write_text(config.read_text())


def _make_adapter(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "models" / DENSE[0], dtype=torch.float32)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "o_proj", "up_proj"], init_lora_weights=False
    )
    torch.manual_seed(3)
    adapted = get_peft_model(model, config)
    adapted.save_pretrained(folder / "adapter")
    adapted.merge_and_unload().save_pretrained(folder / "merged-by-peft")


def _start(spec: Path, folder: Path, server: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        **server,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "VERL_PLATFORM": "cpu",
        "PYTHONPATH": str(JOB.parents[2]),
    }
    processes = []
    for rank in range(NUM_PROCESSES):
        with (folder / f"rank{rank}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [server[PYTHON_VARIABLE], str(JOB), str(spec), str(rank)],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
    return processes


def _wait(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + JOB_TIMEOUT_S
    while any(process.poll() is None for process in processes):
        failed = [rank for rank, process in enumerate(processes) if process.poll() not in (None, 0)]
        if failed or time.monotonic() > deadline:
            logs = "\n".join((folder / f"rank{rank}.log").read_text()[-3000:] for rank in failed)
            pytest.fail(f"ranks {failed} of the job failed, or it took too long:\n{logs}")
        time.sleep(0.5)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def assert_same_tensors(first: Path, second: Path) -> None:
    one, other = tensors_of(first), tensors_of(second)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor, other[name]), name


def assert_passed(result: dict[str, Any]) -> None:
    assert result["code"] == 0, "\n".join([*result["said"], result.get("error", "")])


@pytest.mark.parametrize(("model", "layout"), CELLS)
def test_a_hugging_face_folder_goes_to_a_layout_and_back(
    results: Results, model: str, layout: str
) -> None:
    assert_passed(results.converted[f"hf-{model}-{layout}"])
    assert_passed(results.converted[f"{model}-{layout}-hf"])
    assert_same_tensors(results.folder / model / f"{layout}-hf", results.hf(model))


@pytest.mark.parametrize(("model", "source", "target"), PAIRS)
def test_every_layout_goes_to_every_other(
    results: Results, model: str, source: str, target: str
) -> None:
    assert_passed(results.converted[f"{model}-{source}-{target}"])
    made = results.folder / model / f"{source}-{target}" / "iter_0000000"
    expected = results.of_layout(model, target) / "iter_0000000"
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in made.iterdir()) == names
    for name in names:
        assert (made / name).read_bytes() == (expected / name).read_bytes(), name


@pytest.mark.parametrize(("model", "layout"), CELLS)
def test_ranks_load_what_megatron_bridge_loads(results: Results, model: str, layout: str) -> None:
    ranks = results.rank_results(f"ranks-{model}-{layout}")
    assert len(ranks) == {"TP1": 1, "TP4": 4, "TP2xPP2": 4}.get(layout, 2)
    for rank in ranks:
        assert "error" not in rank, rank["error"]
        assert rank["num_parameters"] > 0
        assert rank["differ"] == []


@pytest.mark.parametrize(("model", "layout"), CELLS)
def test_what_verl_saves_in_a_layout_comes_back_as_it_was(
    results: Results, model: str, layout: str
) -> None:
    assert_passed(results.converted[f"saved-{model}-{layout}"])
    assert_same_tensors(results.folder / model / f"{layout}-back", results.hf(model))


@pytest.mark.parametrize("model", MODELS)
def test_both_models_say_the_same(results: Results, model: str) -> None:
    table = results.converted[f"hf-{model}-TP2xPP2"]["said"][1]
    assert "pass  logits on fixed prompts" in table
    assert "100.0% of the first choices agree (all layers" in table


@pytest.mark.parametrize("name", SPOILED)
def test_silent_errors_fail_the_verdict(results: Results, name: str) -> None:
    result = results.converted[f"spoiled-{name}"]
    table = result["said"][1]
    assert result["code"] == 1, table
    assert table.endswith("verdict: FAIL")
    assert SPOILED[name][1] in table


def test_an_existing_pair_is_verified(results: Results) -> None:
    assert_passed(results.converted["verify"])
    assert "pass  checksums" in results.converted["verify"]["said"][1]


def test_another_type_keeps_every_value_that_it_can_hold(results: Results) -> None:
    assert_passed(results.converted["float32"])
    for name, tensor in tensors_of(results.hf(SILENT)).items():
        assert torch.equal(tensors_of(results.folder / "float32")[name], tensor.float())
    assert json.loads((results.folder / "float32/config.json").read_text())["dtype"] == "float32"


def test_many_small_files_are_one_model(results: Results) -> None:
    assert_passed(results.converted["shards"])
    assert len(list((results.folder / "shards").glob("*.safetensors"))) > 3
    assert_same_tensors(results.folder / "shards", results.hf(SILENT))
    for name in ("chat_template.jinja", "tokenizer.json", "generation_config.json"):
        assert (results.folder / "shards" / name).is_file()


def test_a_dry_run_prints_the_plan_and_writes_nothing(results: Results) -> None:
    (plan,) = results.converted["dry-run"]["said"]
    assert "cut for EP2" in plan
    assert "memory" in plan
    assert not (results.folder / "dry-run").exists()
    assert not (results.folder / "dry-run.partial").exists()


def test_a_configuration_of_another_architecture_is_told(results: Results) -> None:
    error = results.converted["architecture"]["error"]
    assert "must hold exactly the tensors of the model in" in error
    assert "model.layers.0.mlp.experts" in error


def test_a_layout_that_does_not_divide_the_model_is_told(results: Results) -> None:
    error = results.converted["layout"]["error"]
    assert "--layout must divide the layers, heads, experts and sizes of qwen3_moe" in error


def test_a_merged_adapter_is_what_peft_merges(results: Results) -> None:
    assert_passed(results.converted["lora"])
    assert "pass  logits on fixed prompts" in results.converted["lora"]["said"][1]
    merged = tensors_of(results.folder / "merged")
    for name, tensor in tensors_of(results.folder / "merged-by-peft").items():
        torch.testing.assert_close(merged[name], tensor, atol=1e-6, rtol=1e-5)
