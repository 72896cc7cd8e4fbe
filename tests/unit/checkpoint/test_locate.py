"""Finding the weights in what people point at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_agent.checkpoint.locate import Located, locate
from megatron_agent.errors import CheckpointError

pytestmark = pytest.mark.unit


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def verl_role(role: Path, form: str, path: str, **entry: str) -> None:
    contents = {"model": {"path": path, "format": form, **entry}}
    write(role / "ckpt_contents.json", json.dumps({"contents": contents}))
    write(role / "model/huggingface/config.json")
    name = "model.safetensors" if form == "huggingface" else ".metadata"
    write(role / path / name)


def test_a_hugging_face_folder(hf_folder: Path) -> None:
    assert locate(hf_folder) == Located("hf", hf_folder, hf_folder)


def test_megatrons_tree_is_followed_to_its_last_iteration(megatron_folder: Path) -> None:
    root = megatron_folder.parent
    write(root / "latest_checkpointed_iteration.txt", "0\n")
    write(root / "huggingface/config.json")
    expected = Located("megatron", megatron_folder, root / "huggingface")
    assert locate(root) == locate(megatron_folder) == expected


def test_verls_weights_in_hugging_face_format(tmp_path: Path) -> None:
    verl_role(tmp_path / "actor", "huggingface", "model/huggingface")
    weights = tmp_path / "actor/model/huggingface"
    assert locate(tmp_path) == locate(tmp_path / "actor") == Located("hf", weights, weights)


def test_verls_weights_in_megatrons_format(tmp_path: Path) -> None:
    role = tmp_path / "global_step_3" / "actor"
    verl_role(role, "megatron_dist_checkpoint", "model/dist_ckpt")
    write(tmp_path / "latest_checkpointed_iteration.txt", "3")
    expected = Located("megatron", role / "model/dist_ckpt", role / "model/huggingface")
    assert locate(tmp_path) == expected


def test_an_adapter_alone_is_no_model(tmp_path: Path) -> None:
    verl_role(tmp_path, "huggingface", "model/huggingface", peft_adapter_path="adapter")
    with pytest.raises(CheckpointError, match=r"Name the base model and --lora .*adapter"):
        locate(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"contents": {}}'])
def test_contents_without_a_model_are_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path / "ckpt_contents.json", text)
    with pytest.raises(CheckpointError, match="must say where the model is"):
        locate(tmp_path)


def test_a_conversion_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.partial").mkdir()
    with pytest.raises(CheckpointError, match="still being written or was never finished"):
        locate(tmp_path / "x.partial")


def test_a_checkpoint_that_verl_has_not_finished_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "actor/model/dist_ckpt/__0_0.distcp")
    with pytest.raises(CheckpointError, match=r"no ckpt_contents\.json, which verl writes last"):
        locate(tmp_path / "actor")


def test_a_checkpoint_of_a_run_counts_only_with_its_mark(tmp_path: Path) -> None:
    verl_role(tmp_path / "global_step_1/actor", "huggingface", "model/huggingface")
    assert locate(tmp_path / "global_step_1").kind == "hf"  # of verl alone, which has no marks
    write(tmp_path / "global_step_2/COMPLETE", "{}")
    with pytest.raises(CheckpointError, match="no COMPLETE file, unlike others of the run"):
        locate(tmp_path / "global_step_1")


def test_a_mark_without_sizes_is_refused(tmp_path: Path) -> None:
    verl_role(tmp_path / "actor", "huggingface", "model/huggingface")
    write(tmp_path / "COMPLETE", "{}")
    with pytest.raises(CheckpointError, match="a COMPLETE file without sizes"):
        locate(tmp_path)


@pytest.mark.parametrize("size", [7, None])
def test_a_file_that_changed_after_the_mark_is_named(tmp_path: Path, size: int | None) -> None:
    verl_role(tmp_path / "actor", "huggingface", "model/huggingface")
    name = "actor/model/huggingface/model.safetensors"
    write(tmp_path / "COMPLETE", json.dumps({"bytes": {name: 9}}))
    (tmp_path / name).unlink()
    if size is not None:
        write(tmp_path / name, "x" * size)
    with pytest.raises(CheckpointError, match="must be 9 bytes long, as COMPLETE says"):
        locate(tmp_path)


def test_a_tracker_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "latest_checkpointed_iteration.txt", "12")
    with pytest.raises(CheckpointError, match=r"iter_0000012 or global_step_12\), got '12'"):
        locate(tmp_path)


def test_megatrons_old_pickles_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "mp_rank_00/model_optim_rng.pt")
    with pytest.raises(CheckpointError, match="Save again with --ckpt-format torch_dist"):
        locate(tmp_path)


@pytest.mark.parametrize("make", [False, True])
def test_a_folder_without_weights_is_refused(tmp_path: Path, make: bool) -> None:
    folder = tmp_path / "folder"
    if make:
        folder.mkdir()
    with pytest.raises(CheckpointError, match="Name a Hugging Face folder" if make else "a folder"):
        locate(folder)
