"""Reading and writing torch_dist checkpoints without running a pickle."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from megatron_agent.checkpoint.output_file import output_file
from megatron_agent.checkpoint.rules import ModelRules
from megatron_agent.checkpoint.tensors import num_not_finite, same_bits
from megatron_agent.checkpoint.torch_dist_file import TorchDistWriter
from megatron_agent.checkpoint.torch_dist_folder import TorchDistFolder
from megatron_agent.checkpoint.torch_dist_metadata import METADATA, _cover, read_metadata
from megatron_agent.errors import CheckpointError

pytestmark = pytest.mark.unit


class RunsCode:
    """Pickles to something that makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_torch_loads_what_is_written_here(
    megatron_folder: Path, rules: ModelRules, tensors: dict[str, torch.Tensor]
) -> None:
    loaded = {rule.key: torch.zeros(0) for rule in rules.params}
    with TorchDistFolder(megatron_folder) as folder:
        loaded = {key: spec.empty() for key, spec in folder.specs.items()}
    dcp.load(loaded, checkpoint_id=megatron_folder, no_dist=True)
    for rule in rules.params:
        expected = rule.to_megatron(tensors)
        rows = slice(0, rule.shape[0])
        assert same_bits(loaded[rule.key][rule.lead][rows], expected), rule.name
    assert not loaded["embedding.word_embeddings.weight"][6:].any()


@pytest.mark.parametrize("shape", [(3, 5), (1,), (), (0, 4), (200, 300)])
def test_a_chunk_is_byte_by_byte_what_torch_saves(tmp_path: Path, shape: tuple[int, ...]) -> None:
    chunk = torch.randn(shape).to(torch.bfloat16)
    with output_file(tmp_path / "chunk") as file:
        TorchDistWriter(file, "chunk").append("key", (0,) * len(shape), chunk)
    saved = io.BytesIO()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(chunk, saved)
    finally:
        torch.serialization.set_crc32_options(True)
    assert (tmp_path / "chunk").read_bytes() == saved.getvalue()


def test_what_torch_writes_is_read_here(tmp_path: Path) -> None:
    state = {"a": torch.randn(4, 6, 8), "b": torch.randn(10).to(torch.bfloat16)}
    dcp.save(state, checkpoint_id=tmp_path / "x", no_dist=True)
    with TorchDistFolder(tmp_path / "x") as folder:
        assert same_bits(folder.read("b", (0,), (10,)), state["b"])
        part = folder.read("a", (1, 2, 3), (2, 3, 4))
        assert same_bits(part, state["a"][1:3, 2:5, 3:7])


def test_a_rectangle_is_put_together_from_the_chunks_of_all_ranks(megatron_folder: Path) -> None:
    with TorchDistFolder(megatron_folder) as folder:
        key = "decoder.layers.mlp.linear_fc1.weight"
        assert len(folder.tensors[key].chunks) == 8  # 2 layers, 2 ranks, gate and up
        whole = folder.read(key, (0, 0, 0), (2, 8, 4))
        assert same_bits(folder.read(key, (1, 1, 1), (1, 6, 2)), whole[1:2, 1:7, 1:3])


def test_files_of_ranks_hold_what_the_ranks_hold(megatron_folder: Path) -> None:
    tensors, objects = read_metadata(megatron_folder)
    files = {chunk.file for chunk in tensors["embedding.word_embeddings.weight"].chunks}
    assert files == {"__0_0.distcp", "__1_0.distcp"}
    assert sorted(objects) == ["common_state/shard_0_1", "state/shard_0_2", "state/shard_1_2"]


def test_a_metadata_file_that_would_run_code_is_refused_and_not_run(
    megatron_folder: Path, tmp_path: Path
) -> None:
    (megatron_folder / METADATA).write_bytes(pickle.dumps(RunsCode(tmp_path / "made")))
    with pytest.raises(CheckpointError, match=r"must be a pickle of torch's .*mkdir.*could run"):
        read_metadata(megatron_folder)
    assert not (tmp_path / "made").exists()


def test_a_tensor_that_would_run_code_is_refused_and_not_run(
    megatron_folder: Path, tmp_path: Path
) -> None:
    tensors, _ = read_metadata(megatron_folder)
    (chunk,) = tensors["decoder.final_layernorm.weight"].chunks
    evil = tmp_path / "evil"
    torch.save(RunsCode(tmp_path / "made"), evil)
    content = bytearray((megatron_folder / chunk.file).read_bytes())
    assert chunk.start + chunk.num_bytes == len(content)
    content[chunk.start :] = evil.read_bytes().ljust(chunk.num_bytes, b"\0")
    (megatron_folder / chunk.file).write_bytes(content)
    with (
        TorchDistFolder(megatron_folder) as folder,
        pytest.raises(CheckpointError, match=r"mkdir|must hold a plain tensor"),
    ):
        folder.read("decoder.final_layernorm.weight", (0,), (4,))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["builtins.eval", "torch.load", "torch.hub.load", "os.system"])
def test_a_name_outside_of_torchs_records_is_refused(megatron_folder: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    (megatron_folder / METADATA).write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(CheckpointError, match=f"got '{name}'"):
        read_metadata(megatron_folder)


@pytest.mark.parametrize("num_bytes", [0, 10, 300])
def test_a_truncated_metadata_file_is_refused(megatron_folder: Path, num_bytes: int) -> None:
    path = megatron_folder / METADATA
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(CheckpointError, match="must be a whole pickle"):
        read_metadata(megatron_folder)


def test_a_pickle_of_something_else_is_refused(megatron_folder: Path) -> None:
    (megatron_folder / METADATA).write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match="must describe chunks of tensors"):
        read_metadata(megatron_folder)


def test_a_checkpoint_without_metadata_is_still_being_written(megatron_folder: Path) -> None:
    (megatron_folder / METADATA).unlink()
    with pytest.raises(CheckpointError, match="still being written"):
        TorchDistFolder(megatron_folder)


@pytest.mark.parametrize("keep", [None, 2000])
def test_a_missing_or_truncated_shard_is_named(megatron_folder: Path, keep: int | None) -> None:
    path = megatron_folder / "__1_0.distcp"
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp must hold \d+ bytes"):
        TorchDistFolder(megatron_folder)


def test_a_damaged_shard_is_told_when_it_is_read(megatron_folder: Path) -> None:
    path = megatron_folder / "__1_0.distcp"
    path.write_bytes(bytes(path.stat().st_size))
    with (
        TorchDistFolder(megatron_folder) as folder,
        pytest.raises(CheckpointError, match="must hold a plain tensor of shape"),
    ):
        folder.read("embedding.word_embeddings.weight", (0, 0), (8, 4))


def test_a_checkpoint_whose_ranks_do_not_make_a_whole_is_refused(
    megatron_folder: Path, tmp_path: Path
) -> None:
    state = {"a": torch.zeros(2, 2)}
    dcp.save(state, checkpoint_id=tmp_path / "x", no_dist=True)
    metadata = pickle.loads((tmp_path / "x" / METADATA).read_bytes())
    metadata.state_dict_metadata["a"].size = torch.Size([4, 2])
    (tmp_path / "x" / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="must cover all 8 elements of a exactly once"):
        TorchDistFolder(tmp_path / "x")


def test_a_chunk_that_stands_in_for_another_is_refused(megatron_folder: Path) -> None:
    metadata = pickle.loads((megatron_folder / METADATA).read_bytes())
    key = "decoder.layers.mlp.linear_fc1.weight"
    chunks = metadata.state_dict_metadata[key].chunks
    chunks[-1] = chunks[0]  # as many elements as before
    (megatron_folder / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=f"64 elements of {key} exactly once, got '64 in 8"):
        TorchDistFolder(megatron_folder)


@pytest.mark.parametrize(
    ("boxes", "shape", "covered"),
    [
        ([((0, 2),), ((2, 1),)], (3,), True),
        ([((0, 2),), ((1, 1),)], (3,), False),  # an overlap and a gap
        ([((-1, 3),)], (2,), False),
        ([((1, 2),)], (2,), False),
        ([((0, 1), (0, 3)), ((1, 2), (0, 1)), ((1, 2), (1, 2))], (3, 3), True),
        ([((0, 2), (0, 1)), ((0, 1), (1, 1)), ((1, 1), (0, 1))], (2, 2), False),
        ([], (0, 3), True),
        ([], (3,), False),
        ([()], (), True),
    ],
)
def test_boxes_that_fill_a_shape_once(
    boxes: list[Any], shape: tuple[int, ...], covered: bool
) -> None:
    assert _cover(boxes, shape) == covered


def test_chunks_of_another_dimension_are_refused(megatron_folder: Path) -> None:
    metadata = pickle.loads((megatron_folder / METADATA).read_bytes())
    metadata.state_dict_metadata["decoder.final_layernorm.weight"].size = torch.Size([2, 2])
    (megatron_folder / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="has chunks of another dimension"):
        TorchDistFolder(megatron_folder)


def test_a_tensor_stored_with_gaps_is_refused(tmp_path: Path) -> None:
    dcp.save({"t": torch.zeros(6, 4).t()}, checkpoint_id=tmp_path / "x", no_dist=True)
    with (
        TorchDistFolder(tmp_path / "x") as folder,
        pytest.raises(CheckpointError, match="strides"),
    ):
        folder.read("t", (0, 0), (4, 6))


def test_shards_outside_of_the_folder_are_refused(tmp_path: Path, megatron_folder: Path) -> None:
    metadata = pickle.loads((megatron_folder / METADATA).read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = "../" + info.relative_path
    (megatron_folder / METADATA).write_bytes(pickle.dumps(metadata))
    shutil.copy(megatron_folder / "__0_0.distcp", megatron_folder.parent)
    with pytest.raises(CheckpointError, match="lies outside of the folder"):
        read_metadata(megatron_folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("count", [0, 3, 8])
def test_numbers_that_are_none_are_counted(dtype: torch.dtype, count: int) -> None:
    tensor = torch.full((8,), torch.finfo(dtype).max, dtype=dtype)  # their sum is infinite
    tensor[:count] = torch.nan
    assert num_not_finite(tensor) == count


def test_bits_are_compared_not_values() -> None:
    zeros = torch.zeros(3, dtype=torch.bfloat16)
    nan = torch.full((4,), torch.nan)
    assert same_bits(nan, nan.clone())
    assert not same_bits(zeros, -zeros)
    assert not same_bits(zeros, zeros.half())
    assert not same_bits(zeros, zeros[:2])
