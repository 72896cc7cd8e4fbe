"""Rules of policies that see: an image that is drawn, a model that looks, one way to cut it up."""

from __future__ import annotations

from pathlib import Path

from envs.registry import EnvCollisionError, EnvLoadError, EnvNotFoundError, load_env
from megatron_agent.config.findings import Findings
from megatron_agent.config.rules.model_folder import MODEL_KEY
from megatron_agent.config.values import ConfigValues

IMAGES_KEY = "env.images"
PROCESSOR_FILES: tuple[str, ...] = ("preprocessor_config.json", "processor_config.json")


def check_images(values: ConfigValues, findings: Findings) -> None:
    """With ``env.images`` the environment draws, the model has an image processor, and the
    inference server cuts images up as the trainer does.
    """
    if not values.flag(IMAGES_KEY):
        return
    _check_drawn(values, findings)
    folder = Path(values.text(MODEL_KEY) or "").expanduser()
    if folder.is_dir() and not any((folder / name).is_file() for name in PROCESSOR_FILES):
        findings.problem(
            IMAGES_KEY,
            f"must be false for a model without {' or '.join(PROCESSOR_FILES)}",
            str(folder),
            "Use a vision-language model such as Qwen2.5-VL.",
        )
    arguments = values.mapping("data.mm_processor_kwargs")
    if arguments:
        findings.problem(
            "data.mm_processor_kwargs",
            f"must be empty with {IMAGES_KEY}=true: SGLang does not get to know them",
            dict(arguments),
            "Set sizes in the model's preprocessor_config.json, which both sides read.",
        )


def _check_drawn(values: ConfigValues, findings: Findings) -> None:
    """Environments that can draw have an option ``image``; of others nothing is known here."""
    try:
        spec = load_env(values.text("env.env_name") or "")
    except (EnvNotFoundError, EnvLoadError, EnvCollisionError):
        return  # reported with env.env_name
    option = spec.option_rules.get("image")
    if option is None or values.get("env.options.image", option.default) is True:
        return
    findings.problem(
        "env.options.image",
        f"must be true with {IMAGES_KEY}=true: {spec.name} draws only then",
        values.get("env.options.image", option.default),
        "Set env.options.image=true.",
    )
