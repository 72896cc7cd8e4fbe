"""The command on a folder with faults of every kind: all are listed, none hides another."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from megatron_agent import cli
from megatron_agent.tasks import read_tasks, write_tasks

pytestmark = pytest.mark.unit

Folder = Any  # of conftest.py

TEMPLATE = (
    "Today is {{ strftime_now('%d %B %Y') }}. "
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'].split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_every_planted_fault_is_reported_at_once(
    folder: Folder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 1, 2: the template shows the date, and cuts what stands before </think> out of a prompt.
    folder.set_template(TEMPLATE)
    # 3: an answer ends with a token at which the server does not stop.
    folder.edit_json("generation_config.json", eos_token_id=7)
    # 4, 5: a model that no layer of ours fits, with an embedding of another size.
    folder.edit_json("config.json", architectures=["GPT2LMHeadModel"], vocab_size=384)
    # 6: a shard that a download left unfinished.
    _write_truncated_shard(folder.model)
    # 7, 8: tasks of the wrong split to train on, and one that is held out.
    _mix_tasks(folder.path)
    # 9, 10: a key out of its range, and a layout that does not divide the model.
    overrides = ["algorithm.gamma=-1"]
    overrides.append("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=3")
    # 11: prompts that do not fit.
    overrides.append("data.max_prompt_length=16")
    # 12: an interface that this machine does not have.
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "nosuch0")
    # 13: a port that somebody else listens on.
    with socket.create_server(("127.0.0.2", 0)) as other:
        overrides.append(f"+ray_kwargs.ray_init.dashboard_port={other.getsockname()[1]}")
        code = cli.main(["doctor", "--json", *folder.overrides(*overrides)])

    report = json.loads(capsys.readouterr().out)
    assert code == report["exit_code"] == 2
    found = [
        (check["name"], finding["severity"], f"{finding['subject']} {finding['problem']}")
        for check in report["checks"]
        for finding in check["findings"]
    ]
    for check, severity, words in (
        ("chat_template", "warning", "should not show the date"),
        ("chat_template", "error", "must show the user's message as it is"),
        ("tokenizer", "warning", "generation_config.json and config.json do not name"),
        ("model", "error", "got 'GPT2LMHeadModel'"),
        ("weights", "error", "vocab_size must match the embedding, which has 320 rows, got 384"),
        ("weights", "error", "model-2.safetensors must be a whole safetensors file"),
        ("task_files", "error", "must hold tasks of split 'train', got 1 of 17 of 'eval'"),
        ("task_files", "error", "1 of 4 tasks start like one of data.train_files"),
        ("configuration", "error", "algorithm.gamma must be in [0, 1], got -1"),
        ("configuration", "error", "must divide the model's num_attention_heads (4), got 3"),
        ("environment", "error", "data.max_prompt_length must hold the first prompt"),
        ("network", "error", "NCCL_SOCKET_IFNAME must name an interface of this machine"),
        ("ports", "error", "must be a free port"),
    ):
        assert any(
            (check, severity) == (name, how_bad) and words in text for name, how_bad, text in found
        ), f"{words!r} is not among {found}"
    assert all(f["remedy"] for check in report["checks"] for f in check["findings"])


def test_a_folder_without_faults_gives_no_findings(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    skip = ["--skip=installation", "--skip=plugin", "--skip=shared_memory"]  # of this machine
    code = cli.main(["doctor", *skip, *folder.overrides()])
    text = capsys.readouterr().out
    assert "Nothing to mend" in text, text
    assert code == 0
    assert not (folder.path / "run").exists()


def _write_truncated_shard(model: Path) -> None:
    whole = model / "model-2.safetensors"
    save_file({"lm_head.weight": load_file(model / "model.safetensors").popitem()[1]}, whole)
    whole.write_bytes(whole.read_bytes()[:-16])


def _mix_tasks(path: Path) -> None:
    train = read_tasks(path / "train.parquet")
    held_out = read_tasks(path / "eval.parquet")
    write_tasks(path / "train.parquet", [*train, held_out[0]])
