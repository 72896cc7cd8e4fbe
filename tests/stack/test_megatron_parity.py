"""Megatron on the CPU computes what Hugging Face and plain AdamW compute, in every layout.

One job of four processes (``megatron_parity_job.py``) runs all cases; the tests read its results.
The references are computed here meanwhile. The largest differences found are logged
(``--log-cli-level=INFO``).
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from megatron_agent.backend.cpu.prefork.protocol import PYTHON_VARIABLE

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1500)]

logger = logging.getLogger(__name__)

JOB = Path(__file__).with_name("megatron_parity_job.py")
NUM_PROCESSES = 4
JOB_TIMEOUT_S = 1400

MODELS = ("qwen2-untied", "qwen2-tied", "qwen3-untied", "qwen3-tied", "llama-untied", "llama-tied")
# Updates run on padded batches in the first three layouts and on packed ones in the others.
LAYOUTS: dict[str, dict[str, Any]] = {
    "TP1": {"tp": 1, "pp": 1, "dp": 1, "packed": False},
    "TP2": {"tp": 2, "pp": 1, "dp": 1, "packed": False},
    "PP2": {"tp": 1, "pp": 2, "dp": 1, "packed": False},
    "TP2+SP": {"tp": 2, "pp": 1, "dp": 1, "packed": True, "sp": True},
    "DP2": {"tp": 1, "pp": 1, "dp": 2, "packed": True},
    "TP2xPP2": {"tp": 2, "pp": 2, "dp": 1, "packed": True},
}
# Mixtures of experts. Megatron trains them under tensor parallelism only with sequence parallelism.
MOE_MODEL = "qwen3moe-untied"
MOE_LAYOUTS: dict[str, dict[str, Any]] = {
    "TP1": LAYOUTS["TP1"],
    "PP2": LAYOUTS["PP2"],
    "TP2+SP": LAYOUTS["TP2+SP"],
    "EP2": {"tp": 1, "pp": 1, "dp": 2, "ep": 2, "packed": True},
    # Attention over two ranks, whole experts on one of them each.
    "TP2xEP2": {"tp": 2, "pp": 1, "dp": 1, "ep": 2, "etp": 1, "packed": True, "sp": True},
}
# Activation checkpointing runs the forward pass again inside the backward pass.
RECOMPUTE = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
RECOMPUTE_MODEL, RECOMPUTE_LAYOUT = "qwen3-tied", "TP2+SP"
POLICIES = [(model, layout) for layout in LAYOUTS for model in MODELS] + [
    (MOE_MODEL, layout) for layout in MOE_LAYOUTS
]
CRITIC_MODEL = "qwen2-tied"
CRITIC_LAYOUTS = ("TP1", "TP2", "TP2+SP", "PP2")
# A new value head is random, and a pipeline stage draws other numbers than a whole model does.
CRITIC_LAYOUTS_WITH_ONE_HEAD = ("TP2", "TP2+SP")
CHECKPOINT_MODEL = "qwen3-tied"
CHECKPOINT_LAYOUTS = ("TP2", "TP2xPP2")
REFERENCE_POLICY_LAYOUT = "TP2"
LORA = {
    "type": "lora",
    "rank": 8,
    "alpha": 16,
    "merge": True,
    "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
}
LORA_ATTENTION = {**LORA, "target_modules": ["linear_qkv", "linear_proj"]}
LORA_POLICIES = [
    *(("qwen2-untied", layout, LORA) for layout in ("TP1", "TP2", "PP2", "TP2+SP")),
    (MOE_MODEL, "TP1", LORA),
    # Adapters on experts of several ranks are refused: megatron_agent.backend.cpu.adapters.
    (MOE_MODEL, "EP2", LORA_ATTENTION),
]

LOG_PROB_TOLERANCE = 1e-5
RELATIVE_TOLERANCE = 1e-4


def _load_job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("megatron_parity_job", JOB)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


job = _load_job()


@dataclass
class Reference:
    """What a Hugging Face model and torch's AdamW give on the batch of the job."""

    log_probs: list[torch.Tensor]
    entropies: list[torch.Tensor]
    hidden_states: list[torch.Tensor]
    losses: list[float]
    grad_norms: list[float]
    weights: dict[str, torch.Tensor]


@dataclass
class Parity:
    """All results of the job, the references, and the largest differences seen so far."""

    folder: Path
    references: dict[str, Reference]
    maxima: dict[str, float] = field(default_factory=dict)

    def ranks(self, name: str) -> list[dict[str, Any]]:
        """Return what each rank of a case wrote."""
        return [torch.load(path) for path in sorted(self.folder.glob(f"{name}.rank*.pt"))]

    def note(self, what: str, difference: float) -> float:
        """Remember ``difference`` if it is the largest of its kind, and return it."""
        self.maxima[what] = max(self.maxima.get(what, 0.0), difference)
        return difference


@pytest.fixture(scope="module")
def parity(
    tmp_path_factory: pytest.TempPathFactory, standing_server: dict[str, str]
) -> Iterator[Parity]:
    folder = tmp_path_factory.mktemp("megatron_parity")
    models = {name: _make_model(name, folder / name) for name in (*MODELS, MOE_MODEL)}
    spec = folder / "spec.json"
    spec.write_text(json.dumps({"out": str(folder), "cases": _cases(folder)}))
    processes = _start(spec, folder, standing_server)
    try:
        result = Parity(folder, {name: _reference(model) for name, model in models.items()})
        _wait(processes, folder)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    yield result
    for what, difference in sorted(result.maxima.items()):
        logger.info("largest difference, %s: %.3g", what, difference)


def _cases(folder: Path) -> list[dict[str, Any]]:
    def case(kind: str, model: str, layout: str, **more: Any) -> dict[str, Any]:
        name = f"{kind}-{model}-{layout}"
        settings = MOE_LAYOUTS[layout] if model == MOE_MODEL else LAYOUTS[layout]
        return {"name": name, "kind": kind, "model": str(folder / model), **settings, **more}

    cases = [
        case("policy", model, layout, reference=layout == REFERENCE_POLICY_LAYOUT)
        for model, layout in POLICIES
    ]
    recompute = case("policy", RECOMPUTE_MODEL, RECOMPUTE_LAYOUT, overrides=RECOMPUTE)
    cases.append({**recompute, "name": "recompute"})
    cases += [case("critic", CRITIC_MODEL, layout) for layout in CRITIC_LAYOUTS]
    cases += [
        case("checkpoint", CHECKPOINT_MODEL, layout, folder=str(folder / f"checkpoint-{layout}"))
        for layout in CHECKPOINT_LAYOUTS
    ]
    cases += [case("adapters", model, layout, lora=lora) for model, layout, lora in LORA_POLICIES]
    return cases


def _make_model(name: str, folder: Path) -> Any:
    """Write a tiny random model with its tokenizer to ``folder`` and return it."""
    from tokenizers import Tokenizer, models
    from transformers import (
        AutoModelForCausalLM,
        LlamaConfig,
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen3Config,
        Qwen3MoeConfig,
    )

    family, tying = name.split("-")
    words = {f"w{number}": number for number in range(job.VOCAB_SIZE)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        eos_token="w1",
        pad_token="w2",
    ).save_pretrained(folder)
    config_class = {
        "qwen2": Qwen2Config,
        "qwen3": Qwen3Config,
        "qwen3moe": Qwen3MoeConfig,
        "llama": LlamaConfig,
    }[family]
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = config_class(
        vocab_size=job.VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=tying == "tied",
        dtype="float32",
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=2,
        **(experts | {"norm_topk_prob": True} if family == "qwen3moe" else {}),
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    # Fresh norms are all ones and fresh biases all zeros, which would hide a mix-up.
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            mean = 1.0 if "norm" in parameter_name else 0.0
            torch.nn.init.normal_(parameter, mean=mean, std=0.1)
    model.save_pretrained(folder)
    return model


def _reference(model: Any) -> Reference:
    """Log-probs of ``model``, then as many AdamW updates as the job makes."""
    ids, masks = job.token_ids(), job.loss_masks()

    def log_probs_of(x: torch.Tensor) -> torch.Tensor:
        return model(x[None]).logits[0].log_softmax(-1)

    with torch.no_grad():
        distributions = [log_probs_of(x) for x in ids]
        hidden_states = [model.model(x[None]).last_hidden_state[0] for x in ids]
    log_probs = [
        d[:-1].gather(-1, x[1:, None])[:, 0] for d, x in zip(distributions, ids, strict=True)
    ]
    entropies = [-(d.exp() * d).sum(-1) for d in distributions]

    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=job.LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8)
    num_tokens = sum(int(mask.sum()) for mask in masks)
    losses, grad_norms = [], []
    for _ in range(job.NUM_STEPS):
        optimizer.zero_grad()
        picked = [
            log_probs_of(x)[:-1].gather(-1, x[1:, None])[:, 0][mask[1:].bool()]
            for x, mask in zip(ids, masks, strict=True)
        ]
        loss = -torch.cat(picked).sum() / num_tokens
        loss.backward()
        grad_norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        losses.append(loss.item())
        optimizer.step()
    weights = dict(_named_as_in_files(model))
    return Reference(log_probs, entropies, hidden_states, losses, grad_norms, weights)


def _named_as_in_files(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters of a Hugging Face model; it keeps all experts of a layer in two tensors."""
    for name, parameter in model.named_parameters():
        experts, _, part = name.rpartition(".experts.")
        for expert_id, weight in enumerate(parameter.detach() if experts else ()):
            prefix = f"{experts}.experts.{expert_id}"
            if part == "gate_up_proj":
                gate, up = weight.chunk(2)
                yield f"{prefix}.gate_proj.weight", gate
                yield f"{prefix}.up_proj.weight", up
            else:
                yield f"{prefix}.down_proj.weight", weight
        if not experts:
            yield name, parameter.detach()


def _start(spec: Path, folder: Path, server: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        **server,
        "VERL_PLATFORM": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(JOB.parents[2]),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TOKENIZERS_PARALLELISM": "false",
    }
    processes = []
    for rank in range(NUM_PROCESSES):
        with open(folder / f"log.{rank}", "wb") as log:
            command = [server[PYTHON_VARIABLE], str(JOB), str(spec), str(rank)]
            processes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            )
    return processes


def _wait(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait for all ranks; fail with the log of the first that fails, as the others would hang."""
    deadline = time.monotonic() + JOB_TIMEOUT_S
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if any(process.poll() for process in processes):
            break
        time.sleep(0.2)
    for rank, process in enumerate(processes):
        if process.poll() not in (0, None):
            pytest.fail(f"rank {rank} failed:\n{(folder / f'log.{rank}').read_text()[-4000:]}")
    if any(process.poll() is None for process in processes):
        pytest.fail(f"the job took longer than {JOB_TIMEOUT_S} s")


def _rows(ranks: list[dict[str, Any]], part: str, key: str) -> dict[int, torch.Tensor]:
    """Collect one output of each row of the batch from the ranks that have outputs."""
    return {
        row: tensor
        for rank in ranks
        if rank["has_outputs"]
        for row, tensor in zip(rank["rows"], rank[part][key], strict=True)
    }


def _losses(ranks: list[dict[str, Any]]) -> list[float]:
    outputs = [rank["steps"] for rank in ranks if rank["has_outputs"]]
    return [sum(step["loss"] for step in steps) for steps in zip(*outputs, strict=True)]


def _grad_norms(ranks: list[dict[str, Any]]) -> list[float]:
    steps = next(rank["steps"] for rank in ranks if rank["has_outputs"])
    return [step["grad_norm"] for step in steps]


def _max_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


def _relative(a: float, b: float) -> float:
    return abs(a - b) / abs(b)


def _relative_norm(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("part", ["padded", "packed"])
@pytest.mark.parametrize(("model", "layout"), POLICIES)
def test_log_probs_and_entropies_match_hugging_face(
    parity: Parity, model: str, layout: str, part: str
) -> None:
    ranks = parity.ranks(f"policy-{model}-{layout}")
    reference = parity.references[model]
    log_probs, entropies = (_rows(ranks, part, key) for key in ("log_probs", "entropy"))
    assert sorted(log_probs) == [0, 1, 2, 3]
    for row, tensor in log_probs.items():
        # The last position predicts a token that does not exist.
        difference = _max_difference(tensor[:-1], reference.log_probs[row])
        assert parity.note(f"log-prob, {part}", difference) < LOG_PROB_TOLERANCE
        difference = _max_difference(entropies[row], reference.entropies[row])
        assert parity.note(f"entropy, {part}", difference) < LOG_PROB_TOLERANCE


@pytest.mark.parametrize("model", MODELS)
def test_frozen_reference_policy_beside_an_actor_gives_the_same_log_probs(
    parity: Parity, model: str
) -> None:
    ranks = parity.ranks(f"policy-{model}-{REFERENCE_POLICY_LAYOUT}")
    for row, tensor in _rows(ranks, "reference", "log_probs").items():
        difference = _max_difference(tensor[:-1], parity.references[model].log_probs[row])
        assert parity.note("log-prob, reference policy", difference) < LOG_PROB_TOLERANCE


@pytest.mark.parametrize(("model", "layout"), POLICIES)
def test_three_updates_match_plain_adamw(parity: Parity, model: str, layout: str) -> None:
    ranks = parity.ranks(f"policy-{model}-{layout}")
    reference = parity.references[model]
    for ours, theirs in zip(_losses(ranks), reference.losses, strict=True):
        assert parity.note("loss, relative", _relative(ours, theirs)) < RELATIVE_TOLERANCE
    for ours, theirs in zip(_grad_norms(ranks), reference.grad_norms, strict=True):
        assert parity.note("gradient norm, relative", _relative(ours, theirs)) < RELATIVE_TOLERANCE
    weights = ranks[0]["weights"]
    assert set(weights) == set(reference.weights)
    for name, theirs in reference.weights.items():
        difference = _relative_norm(weights[name], theirs)
        assert parity.note("weight against AdamW, relative", difference) < RELATIVE_TOLERANCE, name


@pytest.mark.parametrize(
    ("model", "layout"), [(model, layout) for model, layout in POLICIES if layout != "TP1"]
)
def test_weights_after_three_updates_do_not_depend_on_the_layout(
    parity: Parity, model: str, layout: str
) -> None:
    alone = parity.ranks(f"policy-{model}-TP1")[0]["weights"]
    weights = parity.ranks(f"policy-{model}-{layout}")[0]["weights"]
    assert set(weights) == set(alone)
    for name, weight in alone.items():
        difference = _relative_norm(weights[name], weight)
        assert parity.note("weight between layouts, relative", difference) < RELATIVE_TOLERANCE, (
            name
        )


def test_recomputed_activations_give_the_same_updates(parity: Parity) -> None:
    ranks = parity.ranks("recompute")
    kept = parity.ranks(f"policy-{RECOMPUTE_MODEL}-{RECOMPUTE_LAYOUT}")
    assert _losses(ranks) == _losses(kept)
    weights, expected = ranks[0]["weights"], kept[0]["weights"]
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_sequence_parallelism_is_on_where_it_was_asked_for(parity: Parity) -> None:
    for layout, settings in LAYOUTS.items():
        for rank in parity.ranks(f"policy-{MODELS[0]}-{layout}"):
            assert rank["sequence_parallel"] == settings.get("sp", False)


@pytest.mark.parametrize("layout", CRITIC_LAYOUTS)
def test_critic_values_are_its_head_on_hugging_face_hidden_states(
    parity: Parity, layout: str
) -> None:
    ranks = parity.ranks(f"critic-{CRITIC_MODEL}-{layout}")
    head = next(rank["head"] for rank in ranks if rank["has_outputs"])
    assert all(torch.equal(rank["head"], head) for rank in ranks if rank["head"] is not None)
    for row, values in _rows(ranks, "before", "values").items():
        expected = parity.references[CRITIC_MODEL].hidden_states[row] @ head[0]
        difference = _max_difference(values, expected)
        assert parity.note("critic value against Hugging Face", difference) < LOG_PROB_TOLERANCE


@pytest.mark.parametrize("layout", CRITIC_LAYOUTS_WITH_ONE_HEAD)
def test_critic_learns_the_same_under_tensor_parallelism(parity: Parity, layout: str) -> None:
    alone = parity.ranks(f"critic-{CRITIC_MODEL}-TP1")
    ranks = parity.ranks(f"critic-{CRITIC_MODEL}-{layout}")
    for ours, theirs in zip(_losses(ranks), _losses(alone), strict=True):
        assert parity.note("critic loss, relative", _relative(ours, theirs)) < RELATIVE_TOLERANCE
    after, before = _rows(alone, "after", "values"), _rows(alone, "before", "values")
    for row, values in _rows(ranks, "after", "values").items():
        difference = _max_difference(values, after[row])
        assert parity.note("critic value after updates", difference) < RELATIVE_TOLERANCE
        assert _max_difference(before[row], after[row]) > 0.1


@pytest.mark.parametrize("layout", CHECKPOINT_LAYOUTS)
def test_checkpoint_restores_every_bit_and_the_next_update_repeats(
    parity: Parity, layout: str
) -> None:
    ranks = parity.ranks(f"checkpoint-{CHECKPOINT_MODEL}-{layout}")
    saved, moved, loaded = (ranks[0][key] for key in ("saved", "moved", "loaded"))
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    assert any(not torch.equal(saved[name], moved[name]) for name in saved)
    first, again = next(rank["steps"] for rank in ranks if rank["has_outputs"])
    assert first == again
    assert {"model", "optimizer", "extra"} <= set(ranks[0]["files"])


@pytest.mark.parametrize(("model", "layout"), [policy[:2] for policy in LORA_POLICIES])
def test_fresh_adapters_change_nothing_and_are_all_that_is_trained(
    parity: Parity, model: str, layout: str
) -> None:
    ranks = parity.ranks(f"adapters-{model}-{layout}")
    for row, tensor in _rows(ranks, "before", "log_probs").items():
        difference = _max_difference(tensor[:-1], parity.references[model].log_probs[row])
        assert parity.note("log-prob with fresh adapters", difference) < LOG_PROB_TOLERANCE
    trained = [name for rank in ranks for name in rank["trained"]]
    assert trained
    assert all(".adapter." in name for name in trained)
    losses = _losses(ranks)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("model", "layout"), [policy[:2] for policy in LORA_POLICIES])
def test_merged_weights_in_hugging_face_give_what_the_adapters_gave(
    parity: Parity, model: str, layout: str
) -> None:
    from transformers import AutoModelForCausalLM

    ranks = parity.ranks(f"adapters-{model}-{layout}")
    folder = parity.folder / f"merged-{model}-{layout}"
    folder.mkdir()
    shutil.copy(parity.folder / model / "config.json", folder)
    weights = {name: weight.contiguous() for name, weight in ranks[0]["weights"].items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    after = _rows(ranks, "after", "log_probs")
    for row, ids in enumerate(job.token_ids()):
        with torch.no_grad():
            predicted = merged(ids[None]).logits[0, :-1].log_softmax(-1)
        expected = predicted.gather(-1, ids[1:, None])[:, 0]
        difference = _max_difference(after[row][:-1], expected)
        assert parity.note("log-prob, adapters against merged", difference) < LOG_PROB_TOLERANCE
        # Far from where they began, or nothing would be shown.
        assert _max_difference(expected, parity.references[model].log_probs[row]) > 1e-2
