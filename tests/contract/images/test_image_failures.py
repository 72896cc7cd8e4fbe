"""What goes wrong with images ends one episode, or the run, with the reason."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]


def test_an_over_long_prompt_says_how_many_tokens_the_image_took(policy: Any) -> None:
    policy.config.actor_rollout_ref.rollout.prompt_length = 12
    (output,) = policy.play()
    assert "(9 of them image tokens), at most 12" in output.extra_fields["failure"]
    assert output.extra_fields["fatal"] == ""


def test_a_policy_that_cannot_see_ends_the_run_with_the_reason(policy: Any) -> None:
    policy.processor, policy.model_type = None, "qwen2"
    (output,) = policy.play()
    assert output.extra_fields["fatal"].startswith(
        "ConfigError: actor_rollout_ref.model.path must be a vision-language model whose processor "
        "verl can load, with env.images=true, got "
    )


def test_an_environment_that_draws_nothing_ends_the_run_with_the_reason(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = policy.row()
    row["extra_info"] = {**row["extra_info"], "options_json": "{}"}
    monkeypatch.setattr(policy, "row", lambda: row)
    (output,) = policy.play()
    assert output.extra_fields["fatal"].startswith("ConfigError: env.images must be false for ")


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>"])
def test_a_text_that_names_a_placeholder_fails_its_episode_alone(
    policy: Any, tmp_path: Path, images: bool, token: str
) -> None:
    policy.config.env.images = images
    (tmp_path / "prompt.txt").write_text("{observation} " + token)
    policy.config.env.prompt_file = str(tmp_path / "prompt.txt")
    (output,) = policy.play()
    assert output.extra_fields["failure"] == (
        f"generation_error: a prompt's text must not hold {token}, which stands for a picture or a "
        "video."
    )
    assert output.extra_fields["fatal"] == ""


def test_a_placeholder_in_a_response_fails_its_episode_alone(policy: Any) -> None:
    policy.server.texts = itertools.cycle(["up <|image_pad|>"])
    (output,) = policy.play()
    assert output.extra_fields["failure"] == (
        f"generation_error: the response holds token {policy.processor.image_token_id}, which "
        "stands for a picture or a video."
    )
