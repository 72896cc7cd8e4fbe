"""The pool on the event loop that Ray's actors bring, which is not asyncio's own."""

from __future__ import annotations

import pytest
import uvloop

from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.tasks import EnvTask

pytestmark = pytest.mark.unit


def test_an_episode_starts_and_steps_on_uvloop() -> None:
    task = EnvTask(env="frozenlake", task_id="lake", seed=1, split="train")

    async def play() -> bool:
        pool = EnvPool(num_workers=1)
        await pool.start()
        try:
            session = await pool.open_session(task, group_id="lake", session_id=0)
            observation = await session.reset()
            outcome = await session.step(observation.admissible_actions[0])
            await session.close()
            return outcome.action_valid
        finally:
            await pool.close()

    assert uvloop.run(play())
