"""From a recipe to a complete policy folder.

The folder is written beside its place under the name ``<folder>.partial`` and renamed when nothing
is missing, so a folder of the right name is always whole. ``policy.json`` in it says how it was
made and what it can do.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.prompt_template import TemplateError, with_prompt_file
from envs.registry import EnvSpec, load_env
from megatron_agent.errors import ConfigError
from megatron_agent.policy.model import ModelShape, build_model, num_parameters
from megatron_agent.policy.tokenizer import check_vocab_size, train_tokenizer
from megatron_agent.policy.warm_start import WarmStartConfig, WarmStartResult, warm_start
from megatron_agent.tasks import EnvTask, generate_tasks, read_tasks
from megatron_agent.writable import nearest_existing, write_fault

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

RECIPE_FILE = "policy.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRecipe:
    """Everything that decides what a policy is: equal recipes give equal weights on one machine."""

    env: str
    """The environment to warm-start on; its texts train the tokenizer."""
    more_envs: Sequence[str] = ()
    """Further environments whose texts train the tokenizer."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    shape: ModelShape = field(default_factory=ModelShape)
    vocab_size: int = 768
    seed: int = 0
    warm_start: WarmStartConfig | None = None
    """None: the weights stay random."""
    train_tasks: str | None = None
    """Task file to demonstrate on; only its ``train`` rows of ``env`` are used. None: tasks are
    generated."""
    num_tasks: int = 3000
    """How many to generate, before those that are set aside to measure on."""
    num_threads: int = 2
    """Threads of torch. Part of the recipe, since another number adds in another order."""

    def __post_init__(self) -> None:
        check_vocab_size(self.vocab_size)
        if self.num_threads < 1:
            raise ConfigError("num_threads", "must be at least 1", self.num_threads, "Use 2.")
        if self.warm_start and self.num_tasks <= self.warm_start.num_measure_episodes:
            num_measure = self.warm_start.num_measure_episodes
            raise ConfigError(
                "num_tasks",
                f"must be more than the {num_measure} set aside to measure on",
                self.num_tasks,
                f"Use {10 * num_measure}.",
            )


def build_policy(
    recipe: PolicyRecipe, folder: str | Path, *, overwrite: bool = False
) -> dict[str, Any]:
    """Make the policy of ``recipe`` in ``folder`` and return what ``policy.json`` holds.

    Raises:
        ConfigError: a value that cannot work, or ``folder`` exists and may not be replaced.
        EnvNotFoundError: no such environment; the message names the nearest.
        TaskError: a task file that cannot be read.
    """
    folder = Path(folder)
    check_destination(folder, overwrite=overwrite)
    specs = [load_env(name) for name in (recipe.env, *recipe.more_envs)]
    _check_options(specs[0], recipe.env_options)
    tasks = _tasks(recipe) if recipe.warm_start else []
    if recipe.warm_start:
        specs[0] = _with_prompt(specs[0], recipe.warm_start.prompt_file)

    # Threads that wait for work by spinning take the core from the one they wait for as soon as the
    # machine does anything else: an update was ten times slower beside one busy process. OpenMP
    # reads this once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(recipe.num_threads)
    tokenizer = train_tokenizer(
        (text for spec in specs for text in spec.corpus()), vocab_size=recipe.vocab_size
    )
    model = build_model(recipe.shape, tokenizer, seed=recipe.seed)
    logger.info("%s model of %d parameters", recipe.shape.arch, num_parameters(model))
    result = None
    if recipe.warm_start:
        result = warm_start(model, tokenizer, specs[0], tasks, recipe.warm_start, seed=recipe.seed)
    record = _record(recipe, num_parameters(model), result)
    _write(folder, model, tokenizer, record)
    return record


def check_destination(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that is there already, unless it is a policy and may be replaced; and one
    that cannot be made, before the work and not after it.

    Raises:
        ConfigError: see above.
    """
    place = nearest_existing(folder.parent)
    if fault := write_fault(place):
        rule = f"must be in a folder that can be written to ({fault}: {place})"
        raise ConfigError("out", rule, str(folder), "Choose another place.")
    if not folder.exists():
        return
    if not overwrite:
        raise ConfigError(
            "out", "must not exist yet", str(folder), "Choose another, or add --overwrite."
        )
    if not (folder / RECIPE_FILE).is_file():
        raise ConfigError(
            "out",
            f"must be a policy folder (with {RECIPE_FILE}) to be overwritten",
            str(folder),
            "Choose another; what is there was not made by this program.",
        )


def _check_options(spec: EnvSpec, options: Mapping[str, Any]) -> None:
    try:
        spec.validate_options(options)
    except ValueError as error:
        raise ConfigError(
            "env_option", f"must fit ({error})", dict(options), "Correct it."
        ) from error


def _with_prompt(spec: EnvSpec, prompt_file: str | None) -> EnvSpec:
    try:
        return with_prompt_file(spec, prompt_file)
    except TemplateError as error:
        raise ConfigError(
            "prompt_file",
            f"must be a prompt template for {spec.name} ({error})",
            prompt_file,
            "Correct the file, or leave it out for the environment's own prompt.",
        ) from error


def _tasks(recipe: PolicyRecipe) -> list[EnvTask]:
    if recipe.train_tasks is None:
        # No evaluation tasks are drawn here: the run's own lie in another range of seeds. Give a
        # task file where starts under other seeds can be the same (small maps) and must not be
        # seen.
        return generate_tasks(
            recipe.env, recipe.num_tasks, 0, seed=recipe.seed, options=recipe.env_options
        )
    tasks = read_tasks(recipe.train_tasks, code_names=[recipe.env])
    usable = [task for task in tasks if task.split == "train" and task.env == recipe.env]
    if not usable:
        raise ConfigError(
            "train_tasks",
            f"must hold train rows of environment {recipe.env!r}",
            recipe.train_tasks,
            "Make some with `megatron-agent tasks`.",
        )
    return usable


def _record(
    recipe: PolicyRecipe, num_params: int, result: WarmStartResult | None
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "env": recipe.env,
        "more_envs": list(recipe.more_envs),
        "env_options": dict(recipe.env_options),
        "seed": recipe.seed,
        "vocab_size": recipe.vocab_size,
        "num_threads": recipe.num_threads,
        "num_parameters": num_params,
        "model": recipe.shape.to_dict(),
        "warm_start": None,
    }
    if recipe.warm_start and result:
        record["warm_start"] = {
            **recipe.warm_start.to_dict(),
            "train_tasks": recipe.train_tasks,
            "num_tasks": recipe.num_tasks,
            "num_updates": result.num_updates,
            "num_doubt_updates": result.num_doubt_updates,
            "skill": result.skill.to_dict(),
            "success": result.evaluation.to_dict(),
            "greedy_success": result.greedy.to_dict(),
        }
    return record


def _write(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    record: Mapping[str, Any],
) -> None:
    """Write all files under ``<folder>.partial``, then rename; a replaced folder goes last."""
    partial = folder.with_name(folder.name + ".partial")
    replaced = folder.with_name(folder.name + ".replaced")
    for leftover in (partial, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    (partial / RECIPE_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)
