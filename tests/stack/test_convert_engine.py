"""verl's engine starts from a conversion, and what its checkpoint manager saves converts back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_agent.backend.cpu.prefork.protocol import PYTHON_VARIABLE

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("convert_engine_job.py")
WORLD_SIZE = 2
JOB_TIMEOUT_S = 900


def convert(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "convert_ckpt.py", "--no-progress", *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "verdict: pass" in done.stdout
    return done.stdout


def run_engine(folder: Path, server: dict[str, str]) -> None:
    environment = {
        **os.environ,
        **server,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "VERL_PLATFORM": "cpu",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{JOB.parent}",
    }
    ranks = []
    for rank in range(WORLD_SIZE):
        with (folder / f"rank{rank}.log").open("wb") as log:
            command = [server[PYTHON_VARIABLE], str(JOB), str(folder), str(rank), str(WORLD_SIZE)]
            ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout=JOB_TIMEOUT_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert codes == [0] * WORLD_SIZE, (folder / "rank0.log").read_text()[-3000:]


def test_a_checkpoint_of_verls_engine_converts(
    tiny_policy: Path, tmp_path: Path, standing_server: dict[str, str]
) -> None:
    (tmp_path / "policy").symlink_to(tiny_policy)
    convert(tiny_policy, tmp_path / "start", "--layout", "TP2", "--shard-size", "200KB")
    run_engine(tmp_path, standing_server)

    weights = torch.load(tmp_path / "weights.pt")
    source = load_file(tiny_policy / "model.safetensors")
    assert weights["start"].keys() == source.keys()
    assert all(torch.equal(t, source[name].float()) for name, t in weights["start"].items())

    step = tmp_path / "global_step_1"
    assert (step / "actor/model/dist_ckpt/.metadata").is_file()
    said = convert(step, tmp_path / "made")
    assert "pass  logits on fixed prompts" in said
    made = load_file(tmp_path / "made" / "model.safetensors")
    exported = load_file(step / "actor/model/huggingface/model.safetensors")
    assert made.keys() == exported.keys() == source.keys()
    for name, tensor in made.items():
        assert torch.equal(tensor, exported[name]), name
        assert torch.equal(tensor, weights["trained"][name]), name
    assert any(not torch.equal(made[name], source[name].float()) for name in made)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made")
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(tiny_policy).chat_template
    _, loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "made", output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["unexpected_keys"]
