"""Hops 1 to 6 together: a task, its group in worker processes, episodes, rows."""

from __future__ import annotations

import asyncio

import pytest

from envs.registry import load_env
from envs.tags import format_response
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.rollout.episode import run_episode
from megatron_agent.rollout.memory import load_memory
from megatron_agent.rollout.samples import episode_to_samples
from megatron_agent.tasks import EnvTask, generate_tasks
from megatron_agent.types import EncodedPrompt, Episode, Generation

pytestmark = pytest.mark.unit

SPEC = load_env("frozenlake")


class Expert:
    """Says the shortest path, except that it wastes its first ``num_wasted`` steps."""

    def __init__(self, task: EnvTask, num_wasted: int) -> None:
        env = SPEC.make()
        env.reset(seed=task.seed, options=task.options)
        assert SPEC.expert is not None
        self._texts = ["hm"] * num_wasted + [format_response(step) for step in SPEC.expert(env)]

    async def __call__(self, prompt: EncodedPrompt, request_id: str) -> Generation:
        await asyncio.sleep(0)
        text = self._texts.pop(0)
        return Generation(token_ids_L=tuple(text.encode()), log_probs_L=None, text=text)


async def play_group(task: EnvTask, pool: EnvPool, num_sessions: int) -> list[Episode]:
    async def play(session_id: int) -> Episode:
        return await run_episode(
            task=task,
            uid=task.task_id,
            session_id=session_id,
            session=await pool.open_session(task, task.task_id, session_id),
            spec=SPEC,
            memory=load_memory("window", 2),
            encode=lambda prompt: EncodedPrompt(ids_L=tuple(prompt.encode())),
            generate=Expert(task, num_wasted=session_id),
            max_steps=20,
            max_prompt_length=400,
        )

    return await asyncio.gather(*(play(session_id) for session_id in range(num_sessions)))


def test_groups_of_real_episodes_become_rows():
    tasks = generate_tasks("frozenlake", num_train=3, num_eval=1)

    async def main() -> list[list[Episode]]:
        pool = EnvPool(2)
        await pool.start()
        try:
            return await asyncio.gather(*(play_group(task, pool, 4) for task in tasks))
        finally:
            await pool.close()

    for task, group in zip(tasks, asyncio.run(main()), strict=True):
        assert all(episode.success and not episode.failure for episode in group)
        assert [episode.split for episode in group] == [task.split] * 4
        rows = [episode_to_samples(episode) for episode in group]
        lengths = [len(episode_rows) for episode_rows in rows]
        assert lengths == [lengths[0] + wasted for wasted in range(4)]
        # A wasted step stays where it is: its anchor is the start's.
        assert {row.anchor for row in rows[3][:4]} == {rows[0][0].anchor}
        assert [row.action_valid for row in rows[3][:4]] == [False, False, False, True]
        # The shortest path visits each state once, and all sessions walk it.
        paths = [[row.anchor for row in rows[n][n:]] for n in range(4)]
        assert paths[0] == paths[1] == paths[2] == paths[3]
        assert len(set(paths[0])) == len(paths[0])
