"""The row that verl's trainer gets, and a model of Qwen2.5-VL's shape that takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]


def test_a_row_holds_the_tensors_of_its_own_image_and_no_picture(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = policy.play()
    rows = policy.stored(outputs, monkeypatch)
    assert "multi_modal_data" not in set(rows.keys())
    for inputs, output in zip(policy.multi_modal_inputs(rows), outputs, strict=True):
        assert inputs["pixel_values"].shape == (36, 3 * 2 * 14 * 14)
        assert inputs["image_grid_thw"].tolist() == [[1, 6, 6]]
        num_tokens = inputs["image_grid_thw"].prod() // 4
        assert output.prompt_ids.count(policy.processor.image_token_id) == num_tokens


def test_positions_are_those_of_the_model(
    policy: Any, seeing_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    rows = policy.stored(policy.play(), monkeypatch)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(seeing_policy)
    ids_L = rows["input_ids"][0]
    positions = rows["position_ids"][0]
    assert positions.shape == (4, len(ids_L))
    expected, _ = model.model.get_rope_index(
        input_ids=ids_L[None],
        mm_token_type_ids=(ids_L == policy.processor.image_token_id).long()[None],
        image_grid_thw=policy.multi_modal_inputs(rows)[0]["image_grid_thw"],
        attention_mask=torch.ones_like(ids_L)[None],
    )
    assert positions[0].tolist() == list(range(len(ids_L)))
    assert torch.equal(positions[1:], expected[:, 0])
    # Rows and columns of the image count from where it begins.
    first = ids_L.tolist().index(policy.processor.image_token_id)
    side = 3
    at_image = positions[1:, first : first + 9] - first
    expected_places = [(0, row, column) for row in range(side) for column in range(side)]
    assert list(map(tuple, at_image.T.tolist())) == expected_places


def test_a_model_takes_the_row_as_it_is_and_looks_at_the_image(
    policy: Any, seeing_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration
    from verl.utils.model import extract_multi_modal_inputs

    rows = policy.stored(policy.play(), monkeypatch)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(seeing_policy).eval()
    ids_L, positions = rows["input_ids"][0], rows["position_ids"][0]
    inputs = extract_multi_modal_inputs([rows["multi_modal_inputs"][0]])

    def logits(pixel_values: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            output = model(
                input_ids=ids_L[None],
                attention_mask=torch.ones_like(ids_L)[None],
                position_ids=positions[1:, None],
                pixel_values=pixel_values,
                image_grid_thw=inputs["image_grid_thw"],
            )
        return output.logits[0]

    seen, blind = logits(inputs["pixel_values"]), logits(torch.zeros_like(inputs["pixel_values"]))
    assert seen.shape == (len(ids_L), model.config.text_config.vocab_size)
    assert bool(torch.isfinite(seen).all())
    first = ids_L.tolist().index(policy.processor.image_token_id)
    assert torch.equal(seen[:first], blind[:first])
    assert not torch.allclose(seen[first:], blind[first:])


def test_verl_joins_rows_with_and_without_an_image(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.utils.model import extract_multi_modal_inputs

    seen = policy.play()
    policy.config.actor_rollout_ref.rollout.prompt_length = 4
    (unplayed,) = policy.play()
    rows = policy.stored([*seen, unplayed], monkeypatch)
    assert unplayed.extra_fields["failure"].startswith("prompt_too_long: ")
    joined = extract_multi_modal_inputs(list(rows["multi_modal_inputs"]))
    assert joined["pixel_values"].shape[0] == 3 * 36
    assert joined["image_grid_thw"].shape == (3, 3)
    assert [positions.shape[0] for positions in rows["position_ids"]] == [4] * 4
