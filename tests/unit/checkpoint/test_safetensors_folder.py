"""Reading and writing Hugging Face folders; what is wrong with one is said before it is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_agent.checkpoint.output_file import hash_file, output_file
from megatron_agent.checkpoint.safetensors_file import SafetensorsWriter, write_index
from megatron_agent.checkpoint.safetensors_folder import INDEX, SafetensorsFolder
from megatron_agent.checkpoint.tensors import TensorSpec, same_bits
from megatron_agent.errors import CheckpointError

pytestmark = pytest.mark.unit


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two shards, a and b in the first, c in the second, and their index."""
    folder = tmp_path / "sharded"
    folder.mkdir()
    shards = {"one.safetensors": ("a", "b"), "two.safetensors": ("c",)}
    for file, names in shards.items():
        save_file({name: torch.full((2, 3), float(ord(name))) for name in names}, folder / file)
    weight_map = {name: file for file, names in shards.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_every_tensor_is_read_as_the_library_reads_it(hf_folder: Path) -> None:
    expected = load_file(hf_folder / "model.safetensors")
    with SafetensorsFolder(hf_folder) as folder:
        assert folder.tensors.keys() == expected.keys()
        assert all(same_bits(folder.read(name), tensor) for name, tensor in expected.items())


def test_shards_are_read_through_their_index(sharded: Path) -> None:
    with SafetensorsFolder(sharded) as folder:
        assert folder.read("c").tolist() == [[99.0] * 3] * 2
        assert [path.name for path in folder.files()] == ["one.safetensors", "two.safetensors"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_library_reads_what_is_written_here(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"w": torch.randn(5, 3).to(dtype), "empty": torch.zeros(0, 3, dtype=dtype)}
    path = tmp_path / "model.safetensors"
    with output_file(path) as file:
        specs = {name: TensorSpec(dtype, tuple(t.shape)) for name, t in tensors.items()}
        writer = SafetensorsWriter(file, specs)
        for name, tensor in tensors.items():
            writer.append(name, tensor)
        writer.close()
    loaded = load_file(path)
    assert all(same_bits(loaded[name], tensor) for name, tensor in tensors.items())
    assert file.record() == hash_file(path)


def test_a_tensor_that_was_announced_has_to_come(tmp_path: Path) -> None:
    with output_file(tmp_path / "x") as file:
        writer = SafetensorsWriter(file, {"w": TensorSpec(torch.float32, (1,))})
        with pytest.raises(AssertionError, match="1 tensors were never written"):
            writer.close()


def test_an_index_counts_the_bytes(tmp_path: Path) -> None:
    spec = TensorSpec(torch.bfloat16, (2, 3))
    write_index(tmp_path, {"one": {"a": spec}, "two": {"b": spec}})
    index = json.loads((tmp_path / INDEX).read_text())
    assert index == {"metadata": {"total_size": 24}, "weight_map": {"a": "one", "b": "two"}}


def test_a_truncated_shard_is_refused(hf_folder: Path) -> None:
    path = hf_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=r"must be \d+ bytes long.* truncated"):
        SafetensorsFolder(hf_folder)


def test_a_shard_that_shrinks_while_it_is_read_is_noticed(hf_folder: Path) -> None:
    with SafetensorsFolder(hf_folder) as folder:
        path = hf_folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:600])
        with pytest.raises(CheckpointError, match="must be as long as its header says"):
            for name in folder.tensors:
                folder.read(name)


@pytest.mark.parametrize("num_bytes", [0, 4, 8, 100])
def test_a_file_cut_inside_its_header_is_refused(hf_folder: Path, num_bytes: int) -> None:
    path = hf_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(CheckpointError, match="must begin with a safetensors header"):
        SafetensorsFolder(hf_folder)


def test_a_header_that_claims_more_than_there_is_is_refused(hf_folder: Path) -> None:
    path = hf_folder / "model.safetensors"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"shape":[6,4]', b'"shape":[9,4]'))
    with pytest.raises(CheckpointError, match="one after the other, without gaps"):
        SafetensorsFolder(hf_folder)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"two\.safetensors among them.* A shard is missing"):
        SafetensorsFolder(sharded)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c": "one.safetensors"}, r"must name the shard that holds c, two\.safetensors"),
        ({"d": "two.safetensors"}, "d in the index alone"),
        ({"c": "../two.safetensors"}, "must be JSON with a weight_map"),
    ],
)
def test_an_index_of_other_shards_is_refused(
    sharded: Path, change: dict[str, str], message: str
) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"].update(change)
    (sharded / INDEX).write_text(json.dumps(index))
    if change == {"c": "one.safetensors"}:  # the second shard has to be named by something
        save_file({"e": torch.zeros(1)}, sharded / "two.safetensors")
        index["weight_map"]["e"] = "two.safetensors"
        save_file({n: torch.zeros(1) for n in "ec"}, sharded / "two.safetensors")
        (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFolder(sharded)


def test_a_tensor_that_the_index_forgot_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"]["b"]
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="b in a shard alone"):
        SafetensorsFolder(sharded)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_an_index_that_is_none_is_refused(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match="must be JSON with a weight_map"):
        SafetensorsFolder(sharded)


def test_shards_without_an_index_are_not_guessed(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    with pytest.raises(CheckpointError, match="Copy the index too"):
        SafetensorsFolder(sharded)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.ckpt"])
def test_weights_in_pickles_are_never_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02whatever")
    with pytest.raises(CheckpointError, match="never loaded here: save the model as safetensors"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize(("content", "what"), [(b"PK\x03\x04", "zip"), (b"\x80\x04\x95", "pickle")])
def test_a_pickle_in_the_clothes_of_safetensors_is_told(
    tmp_path: Path, content: bytes, what: str
) -> None:
    (tmp_path / "model.safetensors").write_bytes(content + bytes(100))
    with pytest.raises(CheckpointError, match=f"a {what}.* they are never read"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("start", [0x80, 0x02_80, int.from_bytes(b"PK", "little")])
def test_a_type_that_is_not_known_is_named_whatever_the_header_begins_with(
    tmp_path: Path, start: int
) -> None:
    header = b'{"w":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'.ljust(start)
    path = tmp_path / "model.safetensors"
    path.write_bytes(start.to_bytes(8, "little") + header + bytes(2))
    with pytest.raises(CheckpointError, match=r"known here \(BF16.*got 'F8_E4M3 for w'"):
        SafetensorsFolder(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="must begin with a safetensors header"):
        SafetensorsFolder(tmp_path)


def test_a_single_file_beside_an_index_of_shards_is_refused(sharded: Path) -> None:
    save_file({"a": torch.zeros(1)}, sharded / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"got 'both'\. transformers would load"):
        SafetensorsFolder(sharded)


def test_an_index_of_a_single_file_is_read(hf_folder: Path) -> None:
    names = load_file(hf_folder / "model.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (hf_folder / INDEX).write_text(json.dumps(index))
    with SafetensorsFolder(hf_folder) as folder:
        assert folder.tensors.keys() == names.keys()


def test_an_empty_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        SafetensorsFolder(tmp_path)
