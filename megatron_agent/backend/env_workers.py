"""What one agent-loop process keeps between sessions: its environment pool and its episode journal.

verl makes a new agent loop object for each session, inside a Ray actor that lives for the whole
run. Pools and open files must outlive the sessions, so they hang on this module, one set per
process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from envs.prompt_template import with_prompt_file
from envs.registry import EnvSpec, load_env
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.rollout.journal import EpisodeJournal
from megatron_agent.run_folder import current_attempt


class RolloutResources:
    """Per-process singletons, made on first use."""

    _pool: EnvPool | None = None
    _pool_lock: asyncio.Lock | None = None
    _journal: EpisodeJournal | None = None
    _attempt: int | None = None
    _env_specs: ClassVar[dict[str, EnvSpec]] = {}
    _reward_function: Callable[..., Any] | None = None
    _reward_function_loaded = False

    @classmethod
    async def pool(cls, config: Any) -> EnvPool:
        """The environment pool of this process, started.

        Args:
            config: the run's configuration; reads ``env.{num_workers,reset_timeout_s,
                step_timeout_s,start_timeout_s,worker_memory_limit,rollout.redundancy}``.
                ``env.num_workers`` counts the whole machine's worker processes and is divided among
                the agent-loop processes.
        """
        if cls._pool_lock is None:
            cls._pool_lock = asyncio.Lock()
        async with cls._pool_lock:
            if cls._pool is None:
                num_loops = max(1, int(config.actor_rollout_ref.rollout.agent.num_workers))
                pool = EnvPool(
                    num_workers=max(1, int(config.env.num_workers) // num_loops),
                    reset_timeout_s=float(config.env.reset_timeout_s),
                    step_timeout_s=float(config.env.step_timeout_s),
                    start_timeout_s=float(config.env.start_timeout_s),
                    worker_memory_limit=config.env.worker_memory_limit,
                    redundancy=int(config.env.rollout.redundancy),
                    log_dir=Path(str(config.run.dir)) / "logs",
                )
                await pool.start()
                cls._pool = pool
        return cls._pool

    @classmethod
    def env_spec(cls, config: Any, name: str) -> EnvSpec:
        """An environment with the prompt of ``env.prompt_file``, which is read once."""
        if name not in cls._env_specs:
            cls._env_specs[name] = with_prompt_file(load_env(name), config.env.prompt_file)
        return cls._env_specs[name]

    @classmethod
    def reward_function(cls, config: Any) -> Callable[..., Any] | None:
        """verl's ``reward.custom_reward_function``, loaded once; None when there is none."""
        if not cls._reward_function_loaded:
            from verl.trainer.ppo.reward import get_custom_reward_fn

            cls._reward_function = get_custom_reward_fn(config)
            cls._reward_function_loaded = True
        return cls._reward_function

    @classmethod
    def journal(cls, config: Any) -> EpisodeJournal:
        """The file that this process appends its episodes to:
        ``<run.dir>/episodes/<node>-<pid>.jsonl``.
        """
        if cls._journal is None:
            folder = Path(str(config.run.dir)) / "episodes"
            cls._journal = EpisodeJournal(folder / f"{os.uname().nodename}-{os.getpid()}.jsonl")
        return cls._journal

    @classmethod
    def attempt(cls, config: Any) -> int:
        """Which start of the run this process belongs to, from 1."""
        if cls._attempt is None:
            cls._attempt = current_attempt(Path(str(config.run.dir)))
        return cls._attempt
