"""Writing, resuming, publishing, and what is refused before a byte is written."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_agent.checkpoint import convert, partial
from megatron_agent.checkpoint.convert import open_job
from megatron_agent.checkpoint.layout import Layout
from megatron_agent.checkpoint.locate import locate
from megatron_agent.checkpoint.request import Request, parse_bytes
from megatron_agent.checkpoint.verdict import Verdict, compare
from megatron_agent.checkpoint.weights import open_weights
from megatron_agent.errors import CheckpointError

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("toy_model")]


@pytest.fixture
def request_hf(hf_folder: Path, tmp_path: Path) -> Request:
    """A copy in three shards."""
    return Request(source=hf_folder, target=tmp_path / "out", to="hf", shard_bytes=150)


def test_shards_are_no_larger_than_asked_for_and_whole_together(request_hf: Request) -> None:
    with open_job(request_hf) as job:
        seen: list[int] = []
        convert.write(job, {"a": 1}, seen.append).publish()
        assert sum(seen) == job.num_bytes
    files = sorted(request_hf.target.glob("*.safetensors"))
    assert len(files) == 3
    assert sum(file.stat().st_size for file in files) < 3 * 150 + 3 * 1000
    merged = {name: tensor for file in files for name, tensor in load_file(file).items()}
    expected = load_file(request_hf.source / "model.safetensors")
    assert all(torch.equal(merged[name], tensor) for name, tensor in expected.items())
    names = {path.name for path in request_hf.target.iterdir()} - {file.name for file in files}
    assert names == {
        "config.json",
        "tokenizer.json",
        "conversion.json",
        "model.safetensors.index.json",
    }
    assert json.loads((request_hf.target / "config.json").read_text()) == {"dtype": "bfloat16"}


def test_a_megatron_target_is_a_tree_that_megatron_follows(hf_folder: Path, tmp_path: Path) -> None:
    request = Request(source=hf_folder, target=tmp_path / "out", to="megatron")
    with open_job(request) as job:
        convert.write(job, {}).publish()
    located = locate(tmp_path / "out")
    assert located.kind == "megatron"
    assert located.weights == tmp_path / "out/iter_0000000"
    assert located.hf_files == tmp_path / "out/huggingface"
    assert not (tmp_path / "out.partial").exists()


def test_an_interrupted_conversion_goes_on_where_it_stopped(request_hf: Request) -> None:
    def interrupt(num_bytes: int) -> None:
        if (request_hf.target.with_name("out.partial") / first.name).exists() and num_bytes:
            written.append(num_bytes)
            if len(written) > len(first.params) + 1:
                raise KeyboardInterrupt

    written: list[int] = []
    with open_job(request_hf) as job:
        first = job.target.batches[0]
        with pytest.raises(KeyboardInterrupt):
            convert.write(job, {}, interrupt)
    partial = request_hf.target.with_name("out.partial")
    before = (partial / first.name).stat()
    assert not request_hf.target.exists()
    with open_job(request_hf) as job:
        done: list[int] = []
        convert.write(job, {}, done.append).publish()
        assert done[0] == first.num_bytes  # told at once, not written again
    assert (request_hf.target / first.name).stat().st_mtime_ns == before.st_mtime_ns
    assert len(list(request_hf.target.glob("*.safetensors"))) == 3


def test_a_shard_that_lost_bytes_is_written_again(request_hf: Request) -> None:
    with open_job(request_hf) as job:
        partial = convert.write(job, {})
        (partial.root / job.target.batches[1].name).write_bytes(b"")
        done: list[int] = []
        convert.write(job, {}, done.append)
        assert done[0] == job.num_bytes - job.target.batches[1].num_bytes


def test_a_partial_folder_of_another_conversion_is_refused(request_hf: Request) -> None:
    with open_job(request_hf) as job:
        convert.write(job, {})
    other = Request(source=request_hf.source, target=request_hf.target, to="hf", shard_bytes=10**6)
    with (
        open_job(other) as job,
        pytest.raises(CheckpointError, match="must be of the same conversion to go on with"),
    ):
        convert.write(job, {})


def test_a_target_that_exists_is_left_alone(request_hf: Request) -> None:
    request_hf.target.mkdir()
    with (
        open_job(request_hf) as job,
        pytest.raises(CheckpointError, match=r"out must not exist, got 'it does'"),
    ):
        convert.write(job, {})
    assert list(request_hf.target.iterdir()) == []


def test_a_full_disk_is_told_before_anything_is_written(
    request_hf: Request,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with (
        open_job(request_hf) as job,
        pytest.raises(CheckpointError, match=r"0\.00 GB free where 0\.00 GB are needed"),
    ):
        convert.write(job, {})
    assert not request_hf.target.with_name("out.partial").exists()


def test_a_disk_that_fills_up_is_told_and_what_is_written_stays(request_hf: Request) -> None:
    def fill(num_bytes: int) -> None:
        if num_bytes:
            raise OSError(errno.ENOSPC, "no space")

    with (
        open_job(request_hf) as job,
        pytest.raises(CheckpointError, match="Make space and run the same command again"),
    ):
        convert.write(job, {}, fill)
    assert request_hf.target.with_name("out.partial").exists()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(torch.nan, "broken: take another checkpoint"), (torch.inf, "take another --dtype, or")],
)
def test_numbers_that_are_none_are_refused_by_name(
    hf_folder: Path,
    tensors: dict[str, torch.Tensor],
    request_hf: Request,
    number: float,
    remedy: str,
) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][2, 1] = number
    save_file(tensors, hf_folder / "model.safetensors")
    with (
        open_job(request_hf) as job,
        pytest.raises(
            CheckpointError,
            match=rf"layers\.1\.mlp\.up_proj.*must be finite in bfloat16, got '1 of.*{remedy}",
        ),
    ):
        convert.write(job, {})
    assert not request_hf.target.exists()


@pytest.mark.parametrize(
    ("wide", "message"),
    [
        ("layers.1", r"linear_fc1.*must be of one type in all .*--dtype"),
        ("gate_proj", r"must hold one type in all of .*gate_proj\.weight, .*up_proj.*--dtype"),
    ],
)
def test_weights_of_different_types_become_one_tensor_of_the_type_that_is_asked_for(
    hf_folder: Path, tensors: dict[str, torch.Tensor], tmp_path: Path, wide: str, message: str
) -> None:
    for name in tensors:
        if wide in name:
            tensors[name] = tensors[name].float()
    save_file(tensors, hf_folder / "model.safetensors")
    request = Request(source=hf_folder, target=tmp_path / "out", to="megatron")
    with (
        pytest.raises(CheckpointError, match=message),
        open_job(request),
    ):
        pass
    with open_job(replace(request, dtype=torch.float32)) as job:
        assert "largest parameter" in job.describe()
        root = convert.write(job, {}).root
        with open_weights(convert.target_weights(root, job)) as result:
            assert Verdict(tuple(compare(job.rules, job.weights, result, job.stored))).passed


@pytest.mark.parametrize("last", ["sync_to_disk", "rename"])
def test_a_conversion_killed_while_it_gets_its_name_is_not_lost(
    request_hf: Request, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with open_job(request_hf) as job:
        written = convert.write(job, {})
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*((partial, last) if last == "sync_to_disk" else (Path, last)), die)
            written.publish()
        done: list[int] = []
        convert.write(job, {}, done.append).publish()
        assert done == [job.num_bytes]
    assert not (request_hf.target / partial.PROGRESS).exists()


def test_a_batch_that_does_not_reach_the_disk_is_written_again(
    request_hf: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_job(request_hf) as job:
        with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="a full disk"):
            patch.setattr(partial, "sync_to_disk", fail)
            convert.write(job, {})
        done: list[int] = []
        convert.write(job, {}, done.append).publish()
        assert done[0] == 0


def test_the_plan_says_how_much_memory_is_needed(request_hf: Request) -> None:
    with open_job(request_hf) as job:
        text = job.describe()
    assert "ToyForCausalLM, 2 layers, 8 parameters" in text
    assert "4 times the largest parameter" in text


def test_a_layout_is_read_in_any_order() -> None:
    assert Layout.parse("pp4xTP2") == Layout(tp=2, pp=4)


@pytest.mark.parametrize("text", ["", "TP", "TP0", "DP2", "TP2xTP2", "2x2", "TP2 PP2"])
def test_a_text_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="--layout must name sizes of TP, PP and EP"):
        Layout.parse(text)


def test_a_hugging_face_folder_has_no_layout(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be left out with --to hf"):
        Request(source=tmp_path, target=tmp_path, to="hf", layout=Layout(tp=2))


@pytest.mark.parametrize(("text", "num_bytes"), [("5GB", 5 * 10**9), ("200mb", 2 * 10**8)])
def test_sizes_of_files(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "0GB", "5 GB", "5GiB"])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="--shard-size must be a number with a unit"):
        parse_bytes(text)
