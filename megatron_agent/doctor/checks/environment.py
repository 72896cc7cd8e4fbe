"""The environment opens here, two sessions of a task start alike, and the first prompt fits.

Registry, options and data are rules of the configuration. This is what can fail after them, tried
in a worker process as the rollout has it, with the run's own deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from envs.base import Observation
from envs.prompt_template import TemplateError, with_prompt_file
from envs.registry import EnvCollisionError, EnvLoadError, EnvNotFoundError, load_env
from megatron_agent.config.settings import EnvSettings
from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.findings import DoesNotApply, Finding, error
from megatron_agent.doctor.registry import check
from megatron_agent.errors import ConfigError, EnvError, TaskError
from megatron_agent.policy.tokenizer import encode_prompt
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.rollout.memory import load_memory
from megatron_agent.rollout.prompting import step_prompt
from megatron_agent.tasks import EnvTask, draw_tasks, read_tasks


@check("environment", "an episode starts, twice in the same state, and its prompt fits")
def check_environment(case: RunCase) -> Iterator[Finding]:
    """One task, two sessions, one prompt."""
    settings = case.env_settings
    if settings is None:
        raise DoesNotApply("section env has errors")
    try:
        task = _one_task(case, settings)
        observation = asyncio.run(_first_observation(task, settings))
    except (EnvNotFoundError, EnvLoadError, EnvCollisionError, TaskError):
        return  # findings of the configuration
    except (EnvError, ConfigError, ValueError) as fault:
        remedy = f"Try it alone: megatron-agent env check {settings.env_name}."
        yield error("env.env_name", f"must open and reset ({fault})".rstrip("."), remedy)
        return
    yield from _prompt_length(case, settings, task, observation)


async def _first_observation(task: EnvTask, settings: EnvSettings) -> Observation:
    """What two sessions of one group see; they are compared by the pool."""
    pool = EnvPool(
        num_workers=1,
        reset_timeout_s=settings.reset_timeout_s,
        step_timeout_s=settings.step_timeout_s,
        start_timeout_s=settings.start_timeout_s,
    )
    await pool.start()
    try:
        for session_id in range(2):
            session = await pool.open_session(task, group_id="doctor", session_id=session_id)
            observation = await session.reset()
            await session.close()
        return observation
    finally:
        await pool.close()


def _prompt_length(
    case: RunCase, settings: EnvSettings, task: EnvTask, observation: Observation
) -> Iterator[Finding]:
    limit = case.values.integer("data.max_prompt_length")
    try:
        spec = with_prompt_file(load_env(task.env), settings.prompt_file)
        memory = load_memory(settings.memory, settings.history_length)
        prompt = step_prompt(spec, memory, observation, step_idx=0, max_steps=settings.max_steps)
    except (TemplateError, ConfigError):
        return  # findings of the configuration
    except Exception as fault:  # any: the environment's own function
        remedy = f"Try it alone: megatron-agent env check {settings.env_name}."
        yield error("env.env_name", f"must make a prompt ({type(fault).__name__}: {fault})", remedy)
        return
    tokenizer = case.tokenizer
    if limit is None or not getattr(tokenizer, "chat_template", None):
        return
    try:
        options = case.values.mapping("data.apply_chat_template_kwargs")
        num_tokens = len(encode_prompt(tokenizer, prompt, **options))
    except Exception:  # a finding of the chat template
        return
    if num_tokens > limit:
        problem = f"must hold the first prompt of {task.task_id} ({num_tokens} tokens), got {limit}"
        remedy = f"Use at least {num_tokens}, and more for later steps, which show past ones too."
        yield error("data.max_prompt_length", problem, remedy)


def _one_task(case: RunCase, settings: EnvSettings) -> EnvTask:
    path = case.values.text("data.train_files")
    if path is not None and Path(path).expanduser().is_file():
        return read_tasks(Path(path).expanduser(), code_names=[settings.env_name])[0]
    return draw_tasks(settings.env_name, "train", 1, settings.tasks.seed, settings.options)[0]
