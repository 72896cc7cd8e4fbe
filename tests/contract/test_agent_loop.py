"""What the agent loop and the trainer hand to verl when something goes wrong."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from megatron_agent.errors import FailureRateError
from megatron_agent.types import EncodedPrompt, Episode, Generation, Turn

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]


@pytest.fixture
def agent_loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An agent loop whose sessions end before their first step."""
    import verl.experimental.agent_loop  # noqa: F401 - verl must be whole before our part of it

    from megatron_agent.backend.agent_loop import GymStepsAgentLoop

    loop = object.__new__(GymStepsAgentLoop)
    loop.config = OmegaConf.create(
        {
            "algorithm": {
                "gigpo": {"enable_similarity": False},
                "overlong_penalty": {"coef": 0.0, "buffer_length": 2},
            },
            "reward": {},
            "env": {"env_name": "frozenlake"},
        }
    )
    loop.tokenizer = SimpleNamespace(eos_token_id=7)
    loop.rollout_config = SimpleNamespace(calculate_log_probs=True, response_length=2)

    async def play(task: Any, uid: str, session_id: int, _: Any) -> Episode:
        return Episode(
            uid=uid,
            session_id=session_id,
            env=task.env,
            task_id=task.task_id,
            seed=task.seed,
            split=task.split,
            turns_T=(),
            success=False,
            failure="env_error: it died",
        )

    monkeypatch.setattr(loop, "_play", play)
    return loop


EXTRA_INFO = {
    "index": 0,
    "env": "frozenlake",
    "task_id": "t",
    "seed": 3,
    "split": "train",
    "options_json": "{}",
}


def run(agent_loop: Any) -> Any:
    (output,) = asyncio.run(
        agent_loop.run(
            {},
            uid="g",
            session_id=1,
            global_steps=5,
            extra_info=EXTRA_INFO,
            data_source="frozenlake",
            reward_model={"style": "rule", "ground_truth": ""},
        )
    )
    return output


def use_journal(monkeypatch: pytest.MonkeyPatch, append: Any) -> None:
    from megatron_agent.backend import agent_loop

    journal = SimpleNamespace(append=append)
    monkeypatch.setattr(agent_loop.RolloutResources, "journal", lambda _: journal)
    monkeypatch.setattr(agent_loop.RolloutResources, "attempt", lambda _: 1)


def test_a_session_without_steps_is_one_masked_row(
    agent_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_journal(monkeypatch, lambda *_, **__: None)
    output = run(agent_loop)
    assert (output.response_ids, output.response_mask) == ([7], [0])
    assert output.extra_fields["fatal"] == ""
    assert output.extra_fields["reward_extra_info"]["failure"] == "env_error: it died"


def test_a_full_disk_ends_the_run_instead_of_losing_the_session(
    agent_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    use_journal(monkeypatch, append)
    output = run(agent_loop)
    expected = "OSError: [Errno 28] No space left on device"
    assert output.extra_fields["fatal"] == expected
    assert output.extra_fields["reward_extra_info"]["fatal"] == expected


def test_rows_say_how_long_the_environment_took(
    agent_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_journal(monkeypatch, lambda *_, **__: None)
    fields = run(agent_loop).extra_fields
    assert (fields["env"], fields["reset_s"], fields["env_s"]) == ("frozenlake", 0.0, None)
    play = agent_loop._play

    async def play_one_step(*arguments: Any) -> Episode:
        turn = dataclasses.replace(TURN, env_s=0.25)
        return dataclasses.replace(
            await play(*arguments), turns_T=(turn,), failure="", reset_s=0.5, num_restores=1
        )

    monkeypatch.setattr(agent_loop, "_play", play_one_step)
    fields = run(agent_loop).extra_fields
    assert (fields["reset_s"], fields["env_s"], fields["num_restores"]) == (0.5, 0.25, 1)


TURN = Turn(
    step_idx=0,
    observation="a room",
    anchor="ab",
    anchor_text="a room",
    admissible_actions=("on",),
    prompt="go",
    prompt_ids_L=(1, 2),
    generation=Generation(token_ids_L=(3,), log_probs_L=(-0.5,), text="<on>"),
    action="on",
    action_valid=True,
    invalid_reason="",
    reward=1.0,
    terminated=True,
    truncated=False,
)


def test_a_group_with_redundant_starts_has_the_rows_of_its_size(
    agent_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron_agent.backend.env_workers import RolloutResources
    from megatron_agent.rollout.env_pool import EnvPool

    use_journal(monkeypatch, lambda *_, **__: None)
    monkeypatch.delattr(agent_loop, "_play")  # the real one
    agent_loop.config.env = {
        "env_name": "frozenlake",
        "images": False,
        "memory": "window",
        "history_length": 1,
        "max_steps": 2,
        "generate_timeout_s": 60.0,
        "prompt_file": None,
    }
    agent_loop.rollout_config.prompt_length = 1000
    agent_loop.tokenizer.decode = lambda *_, **__: "<action>up</action>"
    monkeypatch.setattr(agent_loop, "processor", None, raising=False)

    async def encode(content: str) -> EncodedPrompt:
        return EncodedPrompt(ids_L=(1, 2, 3))

    async def generate(**_: Any) -> Any:
        return SimpleNamespace(
            token_ids=[5], log_probs=[-0.5], extra_fields={}, stop_reason="completed"
        )

    monkeypatch.setattr(agent_loop, "_encode", encode)
    agent_loop.server_manager = SimpleNamespace(generate=generate)

    async def play_group() -> tuple[list[Any], dict[str, float]]:
        pool = EnvPool(2, redundancy=2)
        await pool.start()

        async def the_pool(_: Any) -> EnvPool:
            return pool

        monkeypatch.setattr(RolloutResources, "pool", the_pool)
        try:
            sessions = (
                agent_loop.run(
                    {},
                    uid="g",
                    session_id=session_id,
                    global_steps=5,
                    extra_info=EXTRA_INFO,
                    data_source="frozenlake",
                    reward_model={"style": "rule", "ground_truth": ""},
                )
                for session_id in range(3)
            )
            return await asyncio.gather(*sessions), pool.stats()
        finally:
            await pool.close()

    rows_G, stats = asyncio.run(play_group())
    assert [[row.extra_fields["step_idx"] for row in rows] for rows in rows_G] == [[0, 1]] * 3
    assert not any(row.extra_fields["failure"] for rows in rows_G for row in rows)
    assert len({rows[0].extra_fields["anchor"] for rows in rows_G}) == 1
    assert (stats["num_sessions"], stats["num_spares_dropped"]) == (5, 2)


REWARD_FUNCTION = """
{kind} compute_score(data_source, solution_str, ground_truth, extra_info, factor=1):
    steps = extra_info["episode"]["steps"]
    assert (data_source, solution_str, ground_truth) == ("frozenlake", "<on>", "")
    return factor * len(steps) if steps[0]["action"] == "on" else 0.0
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_verls_custom_reward_function_sees_the_episode(
    agent_loop: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    from megatron_agent.backend.env_workers import RolloutResources

    use_journal(monkeypatch, lambda *_, **__: None)
    # Both are put back: the process keeps what it has loaded.
    monkeypatch.setattr(RolloutResources, "_reward_function_loaded", False)
    monkeypatch.setattr(RolloutResources, "_reward_function", None)
    play = agent_loop._play

    async def play_one_step(*arguments: Any) -> Episode:
        return dataclasses.replace(await play(*arguments), turns_T=(TURN,), failure="")

    monkeypatch.setattr(agent_loop, "_play", play_one_step)
    (tmp_path / "reward.py").write_text(REWARD_FUNCTION.format(kind=kind))
    function = {"path": str(tmp_path / "reward.py"), "name": "compute_score"}
    agent_loop.config.reward = {
        "custom_reward_function": {**function, "reward_kwargs": {"factor": 7}}
    }
    output = run(agent_loop)
    assert output.extra_fields["fatal"] == ""
    assert output.reward_score == 7.0
    assert output.extra_fields["step_reward"] == output.extra_fields["episode_return"] == 7.0

    agent_loop.config.algorithm.overlong_penalty.coef = 1.0
    # One token of two: half way into the buffer.
    assert run(agent_loop).reward_score == 6.5


def test_the_text_of_an_anchor_travels_only_for_similarity(
    agent_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_journal(monkeypatch, lambda *_, **__: None)
    assert "anchor_text" not in run(agent_loop).extra_fields
    agent_loop.config.algorithm.gigpo.enable_similarity = True
    assert run(agent_loop).extra_fields["anchor_text"] == "no-step/g/1"


@pytest.fixture
def trainer() -> Any:
    """A trainer that was never built: its settings alone."""
    import verl.trainer.ppo.v1  # noqa: F401 - verl must be whole before our part of it

    from megatron_agent.backend.trainer import AgentTrainerSeparateAsync

    trainer = object.__new__(AgentTrainerSeparateAsync)
    trainer.settings = SimpleNamespace(env=SimpleNamespace(max_failure_rate=0.5))
    trainer.config = SimpleNamespace(
        data=SimpleNamespace(train_batch_size=8),
        actor_rollout_ref=SimpleNamespace(actor=SimpleNamespace(ppo_mini_batch_size=2)),
    )
    return trainer


def test_an_evaluation_that_lost_a_session_is_refused(trainer: Any) -> None:
    infos = {"reward": [1.0], "success": [1.0], "failure": [""], "fatal": [""]}
    arguments = (["frozenlake"], ["a"], infos, [2])
    metrics = trainer._val_metrics_update(*arguments, expected_acc_counts={("frozenlake", "a"): 1})
    assert metrics["val-aux/frozenlake/success/mean@1"] == 1.0
    assert not any("fatal" in name or "failure" in name for name in metrics)
    with pytest.raises(FailureRateError, match="1 of 2 sessions"):
        trainer._val_metrics_update(
            *arguments, expected_acc_counts={("frozenlake", "a"): 1, ("frozenlake", "b"): 1}
        )


@pytest.mark.parametrize(("updates_per_iteration", "mini_batches"), [(1, 4), (4, 1)])
def test_a_mini_batch_has_its_size_however_many_updates_an_iteration_makes(
    trainer: Any, updates_per_iteration: int, mini_batches: int
) -> None:
    trainer.parameter_sync_step = updates_per_iteration
    assert trainer._num_mini_batches() == mini_batches
