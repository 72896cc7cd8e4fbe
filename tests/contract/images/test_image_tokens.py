"""From a drawn image to a request: its message, its tokens, its picture.

A board of 6 x 6 cells is 96 pixels a side and is brought to 84: 6 x 6 patches of 14 pixels, of
which 2 x 2 make one of 9 tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from envs.base import IMAGE_MARK
from envs.registry import load_env

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]


def test_verl_loads_the_processor_and_knows_its_positions(policy: Any) -> None:
    assert type(policy.processor).__name__ == "Qwen2_5_VLProcessor"
    assert callable(policy.processor.get_rope_index)


def test_every_request_has_its_picture_and_the_tokens_of_it(policy: Any) -> None:
    outputs = policy.play()
    assert [output.extra_fields["failure"] for output in outputs] == [""] * 3
    image_id = policy.processor.image_token_id
    for request, output, image in zip(
        policy.server.requests, outputs, policy.drawn("up", "left"), strict=True
    ):
        (picture,) = request["image_data"]
        assert (picture.mode, picture.size) == ("RGB", (84, 84))
        whole_patches = Image.fromarray(image).resize((84, 84))
        assert np.array_equal(np.asarray(picture), np.asarray(whole_patches))
        assert request["prompt_ids"] == output.prompt_ids
        assert output.prompt_ids.count(image_id) == 9
        assert output.multi_modal_data["images"] == [picture]


def test_the_image_stands_right_before_the_observation(policy: Any) -> None:
    prompt = policy.tokenizer.decode(policy.play()[0].prompt_ids)
    pads = "<|image_pad|>" * 9
    assert prompt.count("<|vision_start|>") == 1
    before, after = prompt.split(f"<|vision_start|>{pads}<|vision_end|>")
    board = load_env("sokoban").make().reset(seed=4).text
    assert before.startswith("<|im_start|>user\n")
    assert after.startswith(board)
    assert IMAGE_MARK not in prompt


def test_a_prompt_file_says_where_the_image_goes(policy: Any, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("{image}\nMove: {actions}.")
    policy.config.env.prompt_file = str(tmp_path / "prompt.txt")
    prompt = policy.tokenizer.decode(policy.play()[0].prompt_ids)
    pads = "<|image_pad|>" * 9
    assert prompt == (
        f"<|im_start|>user\n<|vision_start|>{pads}<|vision_end|>\n"
        "Move: up, down, left, right.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_policy_that_could_see_reads_only_what_it_is_asked_to(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.config.env.images = False
    outputs = policy.play()
    assert [request["image_data"] for request in policy.server.requests] == [None] * 3
    assert not any(policy.processor.image_token_id in output.prompt_ids for output in outputs)
    rows = policy.stored(outputs, monkeypatch)
    assert not any("pixel_values" in inputs for inputs in policy.multi_modal_inputs(rows))
