"""Rules of policies that see, each with its message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

Messages = Callable[..., list[str]]

DRAWN = ("env.env_name=sokoban", "env.options={image: true}", "env.images=true")


@pytest.fixture
def seeing_model(model_folder: Path) -> Path:
    (model_folder / "preprocessor_config.json").write_text("{}")
    return model_folder


def test_a_policy_that_sees_what_is_drawn_is_fine(seeing_model: Path, problems_of: Messages):
    assert problems_of(*DRAWN) == []


def test_a_processor_that_newer_versions_saved_will_do(model_folder: Path, problems_of: Messages):
    (model_folder / "processor_config.json").write_text("{}")
    assert problems_of(*DRAWN) == []


def test_a_model_that_cannot_see(model_folder: Path, problems_of: Messages):
    assert problems_of(*DRAWN) == [
        "env.images must be false for a model without preprocessor_config.json or "
        f"processor_config.json, got '{model_folder}'. Use a vision-language model such as "
        "Qwen2.5-VL."
    ]


@pytest.mark.parametrize("options", ["{}", "{image: false}"])
def test_an_environment_that_does_not_draw(seeing_model: Path, problems_of: Messages, options: str):
    assert problems_of(*DRAWN, f"env.options={options}") == [
        "env.options.image must be true with env.images=true: sokoban draws only then, got False. "
        "Set env.options.image=true."
    ]


def test_an_environment_without_the_option_may_draw(seeing_model: Path, problems_of: Messages):
    assert problems_of("env.images=true") == []


def test_an_environment_that_is_not_there_is_reported_once(
    seeing_model: Path, problems_of: Messages
):
    (problem,) = problems_of("env.images=true", "env.env_name=sokobann")
    assert problem.startswith("env.env_name must be a registered environment")


def test_sizes_that_the_server_does_not_hear_of(seeing_model: Path, problems_of: Messages):
    assert problems_of(*DRAWN, "data.mm_processor_kwargs={max_pixels: 3136}") == [
        "data.mm_processor_kwargs must be empty with env.images=true: SGLang does not get to know "
        "them, got {'max_pixels': 3136}. Set sizes in the model's preprocessor_config.json, which "
        "both sides read."
    ]


@pytest.mark.parametrize("value", ["last", "1"])
def test_images_are_a_flag(problems_of: Messages, value: str):
    (problem,) = problems_of(f"env.images={value}")
    assert problem.startswith("env.images must be true or false, got")
