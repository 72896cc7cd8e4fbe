"""Fakes for the rollout: an environment plugin, a scripted policy, a scripted session."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.base import Observation, ParsedAction, PromptContext, StepOutcome
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.rollout.env_session import EnvSession
from megatron_agent.tasks import EnvTask
from megatron_agent.types import EncodedPrompt, Generation

PLUGIN_FOLDER = Path(__file__).with_name("plugin")


@pytest.fixture
def troublemaker(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the misbehaving environment, installed for the time of the test."""
    monkeypatch.syspath_prepend(str(PLUGIN_FOLDER))
    return "troublemaker"


def pool_task(env: str = "frozenlake", seed: int = 3, **options: Any) -> EnvTask:
    return EnvTask(env=env, task_id=f"t{seed}", seed=seed, split="train", options=options)


def run_in_pool(
    body: Callable[[EnvPool], Awaitable[None]], num_workers: int = 1, **arguments: Any
) -> None:
    """Run ``body`` with a started pool, and see that no worker outlives it."""

    async def main() -> None:
        pool = EnvPool(num_workers, **arguments)
        await pool.start()
        pids = pool.worker_pids()
        try:
            await body(pool)
            pids += pool.worker_pids()
        finally:
            await pool.close()
        assert not any(is_running(pid) for pid in pids if pid)

    asyncio.run(main())


async def start_session(pool: EnvPool, task: EnvTask, session_id: int = 0) -> EnvSession:
    session = await pool.open_session(task, group_id="g", session_id=session_id)
    await session.reset()
    return session


def is_running(pid: int) -> bool:
    """Not ended; one that ended and was not collected by whoever inherited it has ended."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc").exists()


@pytest.fixture
def pools() -> SimpleNamespace:
    """What tests of the pool share: ``task``, ``run``, ``start``, ``is_running``."""
    return SimpleNamespace(
        task=pool_task, run=run_in_pool, start=start_session, is_running=is_running
    )


class FakeGenerate:
    """Replays texts in order; notes what it was asked. Text ``!`` raises instead."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.requests: list[tuple[tuple[int, ...], str]] = []

    async def __call__(self, prompt: EncodedPrompt, request_id: str) -> Generation:
        self.requests.append((prompt.ids_L, request_id))
        text = self.texts[len(self.requests) - 1]
        if text == "!":
            raise ConnectionError("the server is gone")
        return Generation(
            token_ids_L=tuple(text.encode()),
            log_probs_L=tuple(-0.5 for _ in text.encode()),
            text=text,
            weight_version_min=3,
            weight_version_max=4,
        )


class FakeSession:
    """A corridor of five cells, reward 1 at its end. Raises ``errors[step]``; -1 is the reset."""

    actions = ("back", "on")
    num_restores = 0

    def __init__(self, errors: dict[int, Exception] | None = None) -> None:
        self.errors = errors or {}
        self.place = 0
        self.log: list[str] = []

    def observe(self) -> Observation:
        return Observation(
            text=f"cell {self.place}", anchor=self.place, admissible_actions=self.actions
        )

    async def reset(self) -> Observation:
        self.log.append("reset")
        if -1 in self.errors:
            raise self.errors[-1]
        return self.observe()

    async def step(self, action: str) -> StepOutcome:
        num_steps = len([entry for entry in self.log if entry.startswith("step")])
        self.log.append(f"step {action}")
        if num_steps in self.errors:
            raise self.errors[num_steps]
        if action in self.actions:
            self.place = max(0, self.place + (1 if action == "on" else -1))
        at_end = self.place == 4
        return StepOutcome(
            observation=self.observe(),
            reward=float(at_end),
            terminated=at_end,
            truncated=False,
            action_valid=action in self.actions,
            info={"success": at_end},
        )

    async def close(self) -> None:
        self.log.append("close")


class FakeSpec:
    """Prompts that show the history, and a parser that takes the last word."""

    def build_prompt(self, context: PromptContext) -> str:
        past = "".join(f"{step.observation}>{step.action};" for step in context.history)
        return f"{past}{context.observation.text}"

    def project(self, text: str, admissible: Sequence[str]) -> ParsedAction:
        if not text.strip():
            return ParsedAction(action="", valid=False, reason="empty_action")
        return ParsedAction(action=text.split()[-1], valid=True)


@pytest.fixture
def task() -> EnvTask:
    return EnvTask(env="frozenlake", task_id="t0", seed=3, split="train")


@pytest.fixture
def fakes() -> SimpleNamespace:
    """The fake classes, for tests to make or derive from."""
    return SimpleNamespace(Generate=FakeGenerate, Session=FakeSession, Spec=FakeSpec)
