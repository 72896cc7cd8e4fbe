"""The verdict passes what is right, and fails every silent error that was reported in public."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_agent.checkpoint.locate import Kind, Located
from megatron_agent.checkpoint.manifest import MANIFEST, read_manifest, write_manifest
from megatron_agent.checkpoint.rules import ModelRules, ParamRule
from megatron_agent.checkpoint.safetensors_folder import SafetensorsFolder
from megatron_agent.checkpoint.torch_dist_folder import TorchDistFolder
from megatron_agent.checkpoint.verdict import Check, Verdict, check_files, check_side_files, compare
from megatron_agent.checkpoint.weights import CastWeights, HFWeights, MegatronWeights
from megatron_agent.errors import CheckpointError

pytestmark = pytest.mark.unit

Compare = Callable[[Callable[[dict[str, torch.Tensor]], Any]], dict[str, Check]]


@pytest.fixture
def export_with(
    tmp_path: Path, hf_folder: Path, megatron_folder: Path, rules: ModelRules
) -> Compare:
    """Compare the Megatron checkpoint with a Hugging Face export that has an error in it."""

    def run(spoil: Callable[[dict[str, torch.Tensor]], Any]) -> dict[str, Check]:
        tensors = load_file(hf_folder / "model.safetensors")
        spoil(tensors)
        export = tmp_path / "export"
        export.mkdir()
        save_file(tensors, export / "model.safetensors")
        with SafetensorsFolder(export) as folder, TorchDistFolder(megatron_folder) as source:
            stored = MegatronWeights(source)
            return {c.name: c for c in compare(rules, stored, HFWeights(folder), stored)}

    return run


def test_both_directions_pass(opened: tuple[Any, Any], rules: ModelRules) -> None:
    hf, megatron = opened
    for source, target in ((hf, megatron), (megatron, hf), (megatron, megatron)):
        verdict = Verdict(tuple(compare(rules, source, target, source)))
        assert verdict.passed, verdict.table()
        assert verdict.table().endswith("verdict: pass")


def test_the_table_has_the_numbers(opened: tuple[Any, Any], rules: ModelRules) -> None:
    hf, megatron = opened
    checks = {check.name: check.detail for check in compare(rules, hf, megatron, hf)}
    assert checks == {
        "source tensors, each exactly once": "10 stored",
        "result tensors, each exactly once": "4 stored",
        "experts": "2 in a layer, 4 of 4 weights of experts",
        "vocabulary": "6 rows, 2 of padding",
        "output layer": "the embedding (tied)",
        "values in Megatron's format": "8 equal bit by bit",
        "values in Hugging Face's format": "10 equal bit by bit",
        "no NaN, no infinity": "8 parameters",
    }


def test_exported_padding_rows_fail(export_with: Compare) -> None:
    def pad(tensors: dict[str, torch.Tensor]) -> None:
        embedding = tensors["model.embed_tokens.weight"]
        padded = torch.cat([embedding, embedding.new_zeros(2, 4)])
        tensors["model.embed_tokens.weight"] = padded

    check = export_with(pad)["result tensors, each exactly once"]
    assert not check.passed
    assert check.detail == "model.embed_tokens.weight is of shape [8, 4] instead of [6, 4]"


def test_a_stale_output_layer_of_a_tied_model_fails(export_with: Compare) -> None:
    def untie(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    check = export_with(untie)["output layer"]
    assert not check.passed
    assert check.detail == "lm_head.weight differs from the embedding it is tied to"


def test_a_copy_of_the_embedding_as_output_layer_is_no_error(export_with: Compare) -> None:
    def copy(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    assert Verdict(tuple(export_with(copy).values())).passed


def test_a_lost_embedding_fails(export_with: Compare) -> None:
    checks = export_with(lambda tensors: tensors.pop("model.embed_tokens.weight"))
    assert checks["result tensors, each exactly once"].detail == (
        "model.embed_tokens.weight is missing"
    )


def test_dropped_experts_fail(export_with: Compare) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(2):  # what a second rank of EP2 would hold
            del tensors[f"model.layers.{layer}.mlp.experts.1.down_proj.weight"]

    checks = export_with(drop)
    assert not checks["experts"].passed
    assert checks["experts"].detail == "2 in a layer, 2 of 4 weights of experts"
    assert not checks["result tensors, each exactly once"].passed


def test_experts_of_one_rank_exported_twice_fail(export_with: Compare) -> None:
    def repeat(tensors: dict[str, torch.Tensor]) -> None:
        first, second = (f"model.layers.0.mlp.experts.{e}.down_proj.weight" for e in range(2))
        tensors[second] = tensors[first].clone()

    checks = export_with(repeat)
    assert not checks["values in Hugging Face's format"].passed
    assert "experts.1" in checks["values in Hugging Face's format"].detail


def test_gate_and_up_mixed_up_over_ranks_fail(export_with: Compare) -> None:
    """The garbage after a TP round trip: halves of ranks joined in the wrong order."""

    def mix(tensors: dict[str, torch.Tensor]) -> None:
        gate, up = (f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up"))
        ranks = [torch.cat([tensors[gate][:2], tensors[up][:2]])]
        ranks += [torch.cat([tensors[gate][2:], tensors[up][2:]])]
        tensors[gate], tensors[up] = (rank.clone() for rank in ranks)

    checks = export_with(mix)
    assert not checks["values in Megatron's format"].passed
    assert not checks["values in Hugging Face's format"].passed
    detail = checks["values in Megatron's format"].detail
    assert detail == "decoder.layers.1.mlp.linear_fc1.weight (16 of 32 numbers)"


def test_an_empty_export_fails(export_with: Compare) -> None:
    check = export_with(lambda tensors: tensors.clear())["result tensors, each exactly once"]
    assert not check.passed
    assert check.detail.endswith("and 7 more")


def test_a_tensor_too_much_fails(export_with: Compare) -> None:
    check = export_with(lambda tensors: tensors.update(extra=torch.zeros(1)))
    assert check["result tensors, each exactly once"].detail == "extra is too much"


def test_one_bit_fails(export_with: Compare) -> None:
    def flip(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"].view(torch.int16)[2] ^= 1

    checks = export_with(flip)
    assert checks["values in Megatron's format"].detail == (
        "decoder.final_layernorm.weight (1 of 4 numbers)"
    )


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_are_none_fail(export_with: Compare, number: float) -> None:
    checks = export_with(lambda tensors: tensors["model.norm.weight"].fill_(number))
    assert checks["no NaN, no infinity"].detail == "decoder.final_layernorm.weight"


def test_weights_of_integers_are_named_in_both_formats(
    tmp_path: Path,
    hf_folder: Path,
    rules: ModelRules,
    tensors: dict[str, torch.Tensor],
    write_megatron: Callable[..., Path],
) -> None:
    save_file({n: t.int() for n, t in tensors.items()}, hf_folder / "model.safetensors")
    with SafetensorsFolder(hf_folder) as folder:
        findings = HFWeights(folder).account(rules)
    assert len(findings) == len(tensors)
    assert findings[0] == "model.embed_tokens.weight is of type int32"
    with TorchDistFolder(write_megatron(hf_folder, tmp_path / "ints", torch.int32)) as folder:
        findings = MegatronWeights(folder).account(rules)
    assert findings[0] == "embedding.word_embeddings.weight is of type int32"


def test_padding_of_garbage_fails(opened: tuple[Any, Any], rules: ModelRules) -> None:
    hf, megatron = opened

    class Padded(MegatronWeights):
        def padding(self, rule: ParamRule) -> torch.Tensor:
            return super().padding(rule) + 1

    checks = {c.name: c for c in compare(rules, hf, Padded(megatron.folder), hf)}
    assert not checks["vocabulary"].passed


def test_a_parameter_that_two_rules_claim_fails(opened: tuple[Any, Any], rules: ModelRules) -> None:
    hf, _ = opened
    twice = replace(rules, params=(*rules.params, rules.params[0]))
    assert "model.embed_tokens.weight is used 2 times" in hf.account(twice)


def test_a_megatron_checkpoint_with_other_tensors_is_told(
    opened: tuple[Any, Any], rules: ModelRules
) -> None:
    _, megatron = opened
    fewer = replace(rules, params=rules.params[1:])
    assert megatron.account(fewer) == ["embedding.word_embeddings.weight is too much"]
    one_layer = replace(rules, params=tuple(r for r in rules.params if r.lead[:1] != (1,)))
    assert any("instead of [1, 8, 4]" in finding for finding in megatron.account(one_layer))


def test_another_type_is_compared_after_rounding(
    tmp_path: Path, opened: tuple[Any, Any], rules: ModelRules, tensors: dict[str, torch.Tensor]
) -> None:
    _, megatron = opened
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    save_file(wide, tmp_path / "model.safetensors")
    with SafetensorsFolder(tmp_path) as folder:
        expected = CastWeights(megatron, torch.float32)
        assert Verdict(tuple(compare(rules, expected, HFWeights(folder), megatron))).passed
        failed = Verdict(tuple(compare(rules, megatron, HFWeights(folder), megatron)))
        assert not failed.passed
        assert "FAIL  values" in failed.table()


def test_changed_files_are_found_by_their_checksum(hf_folder: Path) -> None:
    write_manifest(hf_folder, {"source": "x"}, [])
    assert check_files(hf_folder) == [Check("checksums", True, "3 files")]
    path = hf_folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (hf_folder / "tokenizer.json").unlink()
    (check,) = check_files(hf_folder)
    assert not check.passed
    assert check.detail == "model.safetensors has another checksum; tokenizer.json is missing"


def test_without_a_manifest_no_checksum_is_claimed(hf_folder: Path) -> None:
    (check,) = check_files(hf_folder)
    assert check.passed
    assert (
        Verdict((check,))
        .table()
        .startswith("warn  checksums  not compared: there is no conversion.json\n")
    )


@pytest.mark.parametrize(
    ("absent", "to", "word", "detail"),
    [
        ([], "hf", "pass", "config, tokenizer; no generation config, no chat template"),
        (["tokenizer.json"], "hf", "warn", "config; no tokenizer, no generation config, no chat"),
        (["config.json"], "hf", "FAIL", "tokenizer; no config, no generation config, no chat"),
        (["config.json"], "megatron", "warn", "tokenizer; no config, no generation config, no"),
    ],
)
def test_a_result_that_cannot_be_served_is_told(
    hf_folder: Path, absent: list[str], to: Kind, word: str, detail: str
) -> None:
    (hf_folder / "tokenizer_config.json").write_text("{}")  # options alone are no tokenizer
    for name in absent:
        (hf_folder / name).unlink()
    table = Verdict((check_side_files(Located(to, hf_folder, hf_folder)),)).table()
    assert table.startswith(f"{word}  files beside the weights  {detail}")


def test_a_chat_template_in_the_options_of_the_tokenizer_counts(hf_folder: Path) -> None:
    (hf_folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    check = check_side_files(Located("hf", hf_folder, hf_folder))
    assert check.detail == "config, tokenizer, chat template; no generation config"


@pytest.mark.parametrize("text", ["", "{}", '{"format": 9, "files": {}}'])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(CheckpointError, match="must be a manifest of format 1"):
        read_manifest(tmp_path)


def test_a_manifest_says_where_a_checkpoint_came_from(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"source": "models/x"}, [])
    assert json.loads((tmp_path / MANIFEST).read_text())["source"] == "models/x"
