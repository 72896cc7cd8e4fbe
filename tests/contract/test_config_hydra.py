"""What the configuration relies on in the installed verl: files, sections, its own checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from megatron_agent.config import AgentSettings, compose_config, split_config
from megatron_agent.config.settings import PENALTY_KEYS
from megatron_agent.config.values import leaf_items
from megatron_agent.config.verl_tree import target_fields, verl_config_dir, verl_defaults

pytestmark = pytest.mark.contract

ROOTS = ["gigpo", "grpo"]


def verl_part(root: str, *overrides: str) -> DictConfig:
    return split_config(compose_config(["experiment=demo", *overrides], config_name=root))[0]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shape and a tokenizer: verl's model section reads both and looks at no weights."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, Qwen2Config

    folder = tmp_path_factory.mktemp("model")
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "up": 3}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    shape = {"vocab_size": 4, "hidden_size": 16, "num_hidden_layers": 2}
    Qwen2Config(**shape, architectures=["Qwen2ForCausalLM"]).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("root", ROOTS)
def test_verl_accepts_the_configuration(root: str, model_folder: Path) -> None:
    from verl.utils.config import validate_config

    config = verl_part(root, f"actor_rollout_ref.model.path={model_folder}")
    validate_config(config, use_reference_policy=True, use_critic=True)


@pytest.mark.parametrize(
    ("section", "class_name"),
    [
        ("actor_rollout_ref.actor", "McoreActorConfig"),
        ("actor_rollout_ref.rollout", "RolloutConfig"),
        ("actor_rollout_ref.model", "HFModelConfig"),
        ("critic", "McoreCriticConfig"),
    ],
)
def test_sections_become_verl_dataclasses(
    section: str, class_name: str, model_folder: Path
) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    config = verl_part("gigpo", f"actor_rollout_ref.model.path={model_folder}")
    built = omega_conf_to_dataclass(OmegaConf.select(config, section))
    assert type(built).__name__ == class_name


def test_the_reference_section_becomes_a_dataclass_after_verls_own_renaming() -> None:
    from verl.utils.config import omega_conf_to_dataclass

    reference = verl_part("gigpo").actor_rollout_ref.ref
    with open_dict(reference):  # as verl's worker does before it builds the dataclass
        for name in list(reference):
            if str(name).startswith("log_prob_"):
                reference.pop(name)
        reference.use_dynamic_bsz = True
    assert type(omega_conf_to_dataclass(reference)).__name__ == "McoreActorConfig"


def test_verls_actor_rejects_our_penalty_keys_where_users_write_them() -> None:
    """The reason for `split_config`; when this fails, the keys may stay in place."""
    from verl.utils.config import omega_conf_to_dataclass

    config = compose_config(["experiment=demo"])
    assert all(key in config.actor_rollout_ref.actor for key in PENALTY_KEYS)
    with pytest.raises(Exception, match="invalid_action_penalty"):
        omega_conf_to_dataclass(config.actor_rollout_ref.actor)


def test_our_settings_read_the_same_from_what_verl_gets() -> None:
    config = compose_config(["experiment=demo"])
    verl_config, settings = split_config(config)
    assert AgentSettings.from_config(verl_config) == AgentSettings.from_config(config) == settings


def test_the_flat_defaults_file_has_the_keys_that_verl_composes() -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(verl_config_dir()), version_base="1.3"):
        composed = compose("ppo_megatron_trainer")
    tree: Any = OmegaConf.to_container(composed, resolve=False)
    tree.pop("model_engine", None)  # the defaults list leaves it; verl's flat file drops it or not
    flat = {key for key, _ in leaf_items(verl_defaults())} - {"model_engine"}
    assert {key for key, _ in leaf_items(tree)} == flat


def test_declared_fields_equal_those_of_the_imported_classes() -> None:
    import dataclasses

    import verl.workers.config as verl_classes

    for name in ("McoreActorConfig", "RolloutConfig", "McoreEngineConfig", "McoreCriticConfig"):
        declared = target_fields(f"verl.workers.config.{name}")
        assert declared is not None
        real = {field.name for field in dataclasses.fields(getattr(verl_classes, name))}
        assert real - {"_target_"} <= set(declared)


def test_composing_and_checking_import_neither_verl_nor_ray_nor_torch() -> None:
    program = (
        "import sys\n"
        "from megatron_agent.config import Findings, check_config, compose_config\n"
        "check_config(compose_config(['experiment=demo']), Findings())\n"
        "heavy = {'verl', 'ray', 'torch', 'sglang', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root, timeout=60)
