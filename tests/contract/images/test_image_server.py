"""SGLang's own processor makes of a request what the trainer gets in the row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("sglang_images_job.py")
REPO_ROOT = Path(__file__).parents[3]


def test_server_and_trainer_see_the_same_tokens_positions_and_pixels(
    policy: Any, seeing_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.config.env.max_steps = 1
    rows = policy.stored(policy.play(), monkeypatch)
    (request,) = policy.server.requests
    (tmp_path / "prompt.json").write_text(json.dumps(request["prompt_ids"]))
    request["image_data"][0].save(tmp_path / "picture.png")
    names = (seeing_policy, "prompt.json", "picture.png", "server.npz")
    subprocess.run(
        [sys.executable, str(JOB), *(str(tmp_path / name) for name in names)],
        check=True,
        cwd=REPO_ROOT,
        env=os.environ | {"PYTHONPATH": str(REPO_ROOT)},
        timeout=500,
    )
    server = np.load(tmp_path / "server.npz")
    assert server["input_ids"].tolist() == request["prompt_ids"]
    num_prompt_tokens = len(request["prompt_ids"])
    positions = rows["position_ids"][0][1:, :num_prompt_tokens]
    assert np.array_equal(server["positions"], positions.numpy())
    inputs = policy.multi_modal_inputs(rows)[0]
    assert np.array_equal(server["pixel_values"], inputs["pixel_values"].numpy())
