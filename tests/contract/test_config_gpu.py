"""verl builds its own records from every configuration for GPUs, model folder apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from megatron_agent.config import compose_config, split_config
from megatron_agent.config.overrides import group_options
from megatron_agent.plan.shapes import SHAPES_DIR

pytestmark = pytest.mark.contract

EXPERIMENTS = [
    name
    for name in group_options("experiment")
    if compose_config([f"experiment={name}"]).cluster.get("hardware") is not None
]


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each shipped shape, with a tokenizer: verl's model section reads both."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models")
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
    )
    for path in SHAPES_DIR.glob("*.json"):
        model = folder / path.stem
        tokenizer.save_pretrained(model)
        (model / "config.json").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_verl_accepts_the_experiment(name: str, model_folders: Path) -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = compose_config([f"experiment={name}"])
    folder = model_folders / config.plan.model_shape
    config.actor_rollout_ref.model.path = str(folder)
    verl_config = split_config(config)[0]
    validate_config(verl_config, use_reference_policy=True, use_critic=False)
    built: dict[str, Any] = {
        section: omega_conf_to_dataclass(OmegaConf.select(verl_config, section))
        for section in (
            "actor_rollout_ref.actor",
            "actor_rollout_ref.rollout",
            "actor_rollout_ref.model",
        )
    }
    assert built["actor_rollout_ref.actor"].megatron.use_distributed_optimizer
    assert built["actor_rollout_ref.model"].use_fused_kernels
