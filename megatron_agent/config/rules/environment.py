"""Rules of the environment and of what surrounds an episode."""

from __future__ import annotations

from collections.abc import Callable

from envs.prompt_template import TemplateError, with_prompt_file
from envs.registry import (
    EnvCollisionError,
    EnvLoadError,
    EnvNotFoundError,
    EnvSpec,
    env_names,
    load_env,
)
from megatron_agent.config.findings import Findings, nearest_key
from megatron_agent.config.values import ConfigValues
from megatron_agent.errors import ConfigError
from megatron_agent.rollout.memory import load_memory
from megatron_agent.rollout.worker_count import check_num_workers
from megatron_agent.rollout.worker_memory import memory_limit_bytes


def check_environment(values: ConfigValues, findings: Findings) -> None:
    """The environment exists and takes the options; memory and workers can be had here."""
    _check_registered(values, findings)
    _check_prompt_file(values, findings)
    memory, history_length = values.text("env.memory"), values.integer("env.history_length")
    if memory is not None and history_length is not None and history_length >= 0:
        _collect(lambda: load_memory(memory, history_length), findings)
    num_workers = values.integer("env.num_workers")
    if num_workers is not None and num_workers >= 1:
        try:
            check_num_workers(num_workers)
        except ConfigError as error:
            findings.problem_here(error)
    memory_limit = values.get("env.worker_memory_limit")
    if isinstance(memory_limit, int | str) and not isinstance(memory_limit, bool):
        _collect(lambda: memory_limit_bytes(memory_limit), findings)


def _collect(check: Callable[[], object], findings: Findings) -> None:
    """Run a check of another room, which raises its problem, and record that."""
    try:
        check()
    except ConfigError as error:
        findings.problems.append(error)


def _check_registered(values: ConfigValues, findings: Findings) -> None:
    name = values.text("env.env_name")
    if name is None:
        return
    spec = _load_spec(name, findings)
    if spec is None:
        return
    try:
        spec.validate_options(values.mapping("env.options"))
    except ValueError as error:
        findings.problem(
            "env.options", f"must suit {name} ({error})", dict(values.mapping("env.options")),
            f"'megatron-agent env list' names the options of {name}.",
        )  # fmt: skip
        return
    try:
        spec.require_data(values.mapping("env.options"))
    except ValueError as error:
        rule, remedy = f"must have its data ({error})", "Get the data, or correct the path."
        findings.problem_here(ConfigError("env.env_name", rule, name, remedy))


def _check_prompt_file(values: ConfigValues, findings: Findings) -> None:
    path, name = values.text("env.prompt_file"), values.text("env.env_name")
    if path is None or name is None:
        return
    try:
        with_prompt_file(load_env(name), path)
    except TemplateError as error:
        findings.problem(
            "env.prompt_file", f"must be a prompt template for {name} ({error})", path,
            "Correct the file, or set null for the environment's own prompt.",
        )  # fmt: skip
    except (EnvNotFoundError, EnvLoadError, EnvCollisionError):
        return  # reported with env.env_name


def _load_spec(name: str, findings: Findings) -> EnvSpec | None:
    try:
        return load_env(name)
    except EnvNotFoundError as error:
        # What Gymnasium says about an id is more than we know.
        why = f" ({error})" if ":" in name else ""
        near = nearest_key(name, env_names())
        hint = f"Did you mean {near!r}? " if near else ""
        remedy = f"{hint}Registered: {', '.join(env_names())}; or gym:ID, or package.module:Class."
        findings.problem("env.env_name", f"must be a registered environment{why}", name, remedy)
    except (EnvLoadError, EnvCollisionError) as error:
        problem = ConfigError(
            "env.env_name", f"must load ({error})", name, "Install what it needs."
        )
        findings.problem_here(problem)
    return None
