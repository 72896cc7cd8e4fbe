"""What verl calls us with, and what it makes of what we return: signatures and behaviour.

verl's classes are driven without Ray and without a model; a stand-in takes the place of what is
around them.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from megatron_agent.types import StepSample

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


# -- signatures ------------------------------------------------------------------------------------


def test_an_agent_loop_is_run_with_sampling_parameters_and_the_rows_fields() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase

    from megatron_agent.backend.agent_loop import GymStepsAgentLoop

    for loop in (AgentLoopBase, GymStepsAgentLoop):
        assert list(parameters(loop.run)) == ["self", "sampling_params", "kwargs"]
        assert parameters(loop.run)["kwargs"].kind is inspect.Parameter.VAR_KEYWORD
        assert inspect.iscoroutinefunction(loop.run)
    assert not inspect.isabstract(GymStepsAgentLoop)


def test_the_manager_takes_what_the_launcher_gives_it() -> None:
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ

    inspect.signature(AgentLoopManagerTQ.__mro__[1].__init__).bind(
        None,
        config=None,
        llm_client=None,
        teacher_client=None,
        reward_loop_worker_handles=None,
    )
    # A class method that may be called from code without an event loop.
    assert not inspect.iscoroutinefunction(AgentLoopManagerTQ.create)


def test_a_trainer_is_made_from_the_configuration_alone_and_fitted_with_agent_loops() -> None:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    assert list(parameters(PPOTrainer.__init__)) == ["self", "config"]
    inspect.signature(PPOTrainer.fit).bind(None, "agent loops")
    inspect.signature(PPOTrainer.init).bind(None)


@pytest.mark.parametrize(
    "method", ["_compute_old_log_prob", "_compute_advantage", "_update_actor", "_update_critic"]
)
def test_the_hops_of_a_step_take_batch_and_metrics(method: str) -> None:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    assert list(parameters(getattr(PPOTrainer, method)))[:3] == ["self", "batch", "metrics"]


@pytest.mark.parametrize("hook", ["on_validate_begin", "on_train_begin", "on_step_begin"])
def test_the_hooks_of_the_loop_take_nothing(hook: str) -> None:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    assert list(parameters(getattr(PPOTrainer, hook))) == ["self"]


# -- what becomes of the outputs of a session ------------------------------------------------------


def make_output(score: float | None, **extra_fields: Any) -> Any:
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    return AgentLoopOutput(
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5],
        response_mask=[1, 1, 1],
        reward_score=score,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields=extra_fields,
    )


@pytest.fixture
def put_rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hands a session's outputs to verl's worker; returns what it would store."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    worker_class = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class

    async def nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    async def keep(**stored: Any) -> None:
        kept.update(stored)

    kept: dict[str, Any] = {}
    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", keep)
    worker = SimpleNamespace(
        _compute_score=nothing,
        _compute_teacher_logprobs=nothing,
        _compute_multi_modal_inputs=lambda output, input_ids: {},
        _compute_position_ids=lambda input_ids, mask, inputs: torch.arange(input_ids.shape[1])[
            None
        ],
    )

    def put(outputs: list[Any], **kwargs: Any) -> dict[str, Any]:
        kwargs = {"uid": "a1", "session_id": 2, "global_steps": 7, **kwargs}
        asyncio.run(worker_class._agent_loop_postprocess(worker, outputs, validate=False, **kwargs))
        return kept

    return put


def test_row_keys_are_those_of_our_samples(put_rows: Any) -> None:
    outputs = [make_output(1.0, reward_extra_info={}) for _ in range(3)]
    keys = put_rows(outputs)["keys"]
    unused = {
        name: None
        for name in StepSample.__dataclass_fields__
        if name not in ("uid", "session_id", "step_idx")
    }
    assert keys == [
        StepSample(uid="a1", session_id=2, step_idx=step_idx, **unused).key for step_idx in range(3)
    ]


def test_the_score_of_the_last_output_is_copied_to_the_earlier_ones(put_rows: Any) -> None:
    outputs = [make_output(score, reward_extra_info={"from": score}) for score in (0.0, 0.0, 1.5)]
    fields = put_rows(outputs)["fields"]
    assert [float(scores[-1]) for scores in fields["rm_scores"]] == [1.5, 1.5, 1.5]
    assert [output.extra_fields["reward_extra_info"]["from"] for output in outputs] == [1.5] * 3


def test_several_outputs_need_reward_extra_info(put_rows: Any) -> None:
    put_rows([make_output(1.0)])
    with pytest.raises(KeyError, match="reward_extra_info"):
        put_rows([make_output(1.0), make_output(1.0)])


def test_weight_versions_travel_from_the_extra_fields_to_the_tags(put_rows: Any) -> None:
    output = make_output(1.0, reward_extra_info={}, min_global_steps=5, max_global_steps=6)
    [tag] = put_rows([output])["tags"]
    assert (tag["min_global_steps"], tag["max_global_steps"], tag["global_steps"]) == (5, 6, 7)


def test_what_our_loop_writes_about_a_step_comes_back_with_its_row(put_rows: Any) -> None:
    from megatron_agent.backend.agent_loop import _extra_fields

    sample = StepSample(
        uid="a1",
        session_id=2,
        step_idx=0,
        prompt_ids_L=(1,),
        response_ids_L=(2,),
        log_probs_L=None,
        anchor="x",
        step_reward=0.5,
        episode_return=1.0,
        episode_length=2,
        action_valid=True,
        success=True,
        failed=False,
        weight_version_min=None,
        weight_version_max=None,
    )
    extra = _extra_fields(sample, 7, failure="")
    stored = put_rows([make_output(1.0, **extra), make_output(1.0, **extra)])["fields"]
    for row in stored["extra_fields"]:
        found = dict(getattr(row, "data", row))
        assert found["anchor"] == "x"
        assert found["step_reward"] == 0.5
        assert found["fatal"] == ""


# -- what a trainer reads --------------------------------------------------------------------------


def trainer_config(mode: str = "sync") -> Any:
    return OmegaConf.create(
        {
            "algorithm": {"filter_groups": {"enable": False, "max_num_gen_batches": 10}},
            "data": {"train_batch_size": 8},
            "critic": {"ppo_mini_batch_size": 4},
            "actor_rollout_ref": {
                "actor": {
                    "ppo_mini_batch_size": 4,
                    "ppo_epochs": 1,
                    "calculate_entropy": False,
                    "entropy_coeff": 0.0,
                    "data_loader_seed": 1,
                    "shuffle": False,
                },
                "rollout": {"n": 3, "temperature": 1.0},
            },
            "trainer": {
                "critic_warmup": 0,
                "poll_interval_s": 0.25,
                "v1": {
                    "trainer_mode": mode,
                    "sampler": {
                        "max_off_policy_threshold": 1,
                        "max_off_policy_strategy": "drop",
                        "sampler_kwargs": {},
                    },
                },
            },
        }
    )


class _Workers:
    """Stands for the actor's worker group."""

    def update_actor(self, batch: Any) -> dict[str, Any]:
        self.extra_info = dict(batch.extra_info)
        return {"metrics": {"mfu": [0.0]}}


def bare_trainer(cls: type, mode: str = "sync") -> Any:
    """A trainer without its constructor: configuration and workers only."""
    trainer = object.__new__(cls)
    trainer.config = trainer_config(mode)
    trainer.trainer_mode = mode
    trainer.parameter_sync_step = 1
    trainer.use_critic = False
    trainer.global_steps = 1
    trainer.actor_rollout_wg = _Workers()
    return trainer


@pytest.mark.parametrize(("mode", "name"), [("sync", "ReplayBuffer"), ("agent_sync", None)])
def test_verl_compares_the_trainer_mode_with_the_word_sync(mode: str, name: str | None) -> None:
    """The reason why our mix-in puts verl's own mode back before verl reads it."""
    from verl.trainer.ppo.v1 import PPOTrainerSync

    buffer = PPOTrainerSync._build_replay_buffer(bare_trainer(PPOTrainerSync, mode))
    assert type(buffer).__name__ == (name or "ReplayBufferAsync")


def test_the_replay_buffer_polls_as_often_as_we_ask() -> None:
    from verl.trainer.ppo.v1 import PPOTrainerSync

    from megatron_agent.backend.trainer import AgentTrainerSync

    theirs = PPOTrainerSync._build_replay_buffer(bare_trainer(PPOTrainerSync))
    assert theirs.poll_interval == 2.0
    assert bare_trainer(AgentTrainerSync)._build_replay_buffer().poll_interval == 0.25


def test_a_batch_is_filled_to_our_multiple_not_to_verls() -> None:
    from verl.trainer.ppo.v1 import PPOTrainerSync

    from megatron_agent.backend.trainer import AgentTrainerSync

    # verl: mini-batches of 4 prompts times 3 sessions. Ours: two mini-batches on two ranks.
    assert bare_trainer(PPOTrainerSync)._get_required_batch_multiple(2) == 12
    assert bare_trainer(AgentTrainerSync)._get_required_batch_multiple(2) == 4


def rows(num_rows: int) -> Any:
    return SimpleNamespace(keys=[f"a_0_{row}" for row in range(num_rows)], extra_info={})


def test_verl_takes_mini_batches_of_prompts_times_sessions() -> None:
    from verl.trainer.ppo.v1 import PPOTrainerSync

    trainer = bare_trainer(PPOTrainerSync)
    trainer._update_actor(rows(40), {})
    sent = trainer.actor_rollout_wg.extra_info
    assert sent["mini_batch_size"] == sent["global_batch_size"] == 12


def test_ours_takes_equal_parts_of_the_rows_there_are() -> None:
    from megatron_agent.backend.trainer import AgentTrainerSync

    trainer = bare_trainer(AgentTrainerSync)
    before = OmegaConf.to_container(trainer.config)
    trainer._update_actor(rows(40), {})
    sent = trainer.actor_rollout_wg.extra_info
    assert sent["mini_batch_size"] == sent["global_batch_size"] == 20
    assert OmegaConf.to_container(trainer.config) == before


def test_the_configuration_is_put_back_when_an_update_fails() -> None:
    from megatron_agent.backend.trainer import AgentTrainerSync

    trainer = bare_trainer(AgentTrainerSync)
    before = OmegaConf.to_container(trainer.config)
    trainer.actor_rollout_wg = None
    with pytest.raises(AttributeError):
        trainer._update_actor(rows(40), {})
    assert OmegaConf.to_container(trainer.config) == before


def test_our_estimator_spreads_a_rows_credit_over_its_sampled_tokens() -> None:
    import numpy as np
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from megatron_agent.backend.advantage_phase import credit_for_estimator
    from megatron_agent.backend.batch_credit import BatchCredit

    estimator = get_adv_estimator_fn("agent_credit")
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    with pytest.raises(RuntimeError, match=r"agent_credit works only inside an agent_\* trainer"):
        estimator(token_level_rewards=torch.zeros(2, 3), response_mask=mask)
    credit = BatchCredit(
        advantage_N=np.array([0.5, -1.0]), return_N=np.array([2.0, 3.0]), metrics={}
    )
    with credit_for_estimator(credit):
        advantages, returns = estimator(
            token_level_rewards=torch.zeros(2, 3), response_mask=mask, config=None, index=None
        )
    assert advantages.tolist() == [[0.5, 0.5, 0.0], [-1.0, 0.0, 0.0]]
    assert returns.tolist() == [[2.0, 2.0, 0.0], [3.0, 0.0, 0.0]]


def _trainer_that_keeps(folder: Path, step: int, while_writing: list[bool]) -> Any:
    """Our trainer's part that keeps a run, over one that writes nothing but a folder."""
    from megatron_agent.backend.checkpoints import CheckpointKeeper
    from megatron_agent.backend.run_ledger import RunLedger
    from megatron_agent.backend.step_metrics import Owed
    from megatron_agent.backend.trainer import AgentTrainerMixin

    keeper = CheckpointKeeper(root=folder / "checkpoints")

    class Base:
        def _save_checkpoint(self) -> None:
            while_writing.append(keeper.is_complete(step))
            keeper.folder(step).mkdir(exist_ok=True, parents=True)

        def _load_checkpoint(self) -> None:
            self.global_steps = step

        def on_validate_begin(self) -> None:
            pass

        def on_train_begin(self) -> None:
            pass

    class Trainer(AgentTrainerMixin, Base):
        base_mode = "sync"

    trainer = object.__new__(Trainer)
    trainer.checkpoints, trainer.global_steps, trainer.total_training_steps = keeper, step, 9
    trainer.ledger = RunLedger(folder, mode="sync")
    trainer._last_metrics = (step, {"actor/loss": torch.tensor(0.5), "text": "x"}, {"gen": 2.0})
    trainer._owed = Owed()
    trainer.config = OmegaConf.create(
        {
            "run": {"dir": str(folder)},
            "trainer": {
                "resume_mode": "auto",
                "resume_from_path": None,
                "test_freq": 3,
                "val_before_train": True,
                "stop_grace_s": 0,
            },
        }
    )
    return trainer


def test_a_checkpoint_is_not_whole_while_verl_writes_over_it(tmp_path: Path) -> None:
    while_writing: list[bool] = []
    trainer = _trainer_that_keeps(tmp_path, 3, while_writing)
    for _ in range(2):
        trainer._save_checkpoint()
        # At once: the evaluation that follows may take longer than many steps.
        assert trainer.checkpoints.is_complete(3)
    assert while_writing == [False, False]


@pytest.mark.parametrize(
    ("step", "lines", "owed", "evaluates"),
    [
        (3, [2], {"actor/loss": 0.5, "timing_s/gen": 2.0}, True),
        (4, [], {"actor/loss": 0.5, "timing_s/gen": 2.0}, False),  # every third is evaluated,
        (9, [], {"actor/loss": 0.5, "timing_s/gen": 2.0}, True),  # and the last
        (3, [2, 3], None, False),
    ],
)
def test_a_resumed_run_makes_up_for_what_it_was_kept_from(
    tmp_path: Path, step: int, lines: list[int], owed: dict[str, float] | None, evaluates: bool
) -> None:
    """verl saves a step, evaluates it, and writes its metrics last."""
    trainer = _trainer_that_keeps(tmp_path, step, [])
    trainer._save_checkpoint()
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {k}, "a": 1}}\n' for k in lines))
    trainer._load_checkpoint()
    assert trainer._owed.metrics == owed
    assert trainer.config.trainer.val_before_train is evaluates


def test_what_a_resumed_run_owes_is_written_before_it_takes_a_step(tmp_path: Path) -> None:
    trainer = _trainer_that_keeps(tmp_path, 4, [])
    trainer._save_checkpoint()
    written = tmp_path / "metrics.jsonl"
    written.write_text('{"step": 3}\n{"step": 5}\n')  # step 5 was taken, but not saved
    trainer._load_checkpoint()
    trainer.global_steps = 5  # verl counts the step that comes next
    backends: dict[str, Any] = {}
    trainer.logger = SimpleNamespace(
        logger=backends, log=lambda data, step: backends["progress"].log(data, step)
    )
    trainer.train_dataloader, trainer.config.data = [], {"train_batch_size": 2}
    trainer.on_validate_begin()  # a run that ends in the evaluation owes both as before
    assert [json.loads(line)["step"] for line in written.read_text().splitlines()] == [3]
    trainer.on_train_begin()
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 4]
    assert lines[1]["actor/loss"] == 0.5


def test_episodes_of_an_evaluation_do_not_come_back_with_transfer_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron_agent.backend import run_keeping

    trainer = _trainer_that_keeps(tmp_path, 4, [])
    trainer._save_checkpoint()
    trainer.base_mode = "colocate_async"
    cleared: list[tuple[list[str], str]] = []
    queue = SimpleNamespace(
        kv_list=lambda partition: {partition: {"a": {}, "b": {}}},
        kv_clear=lambda keys, partition_id: cleared.append((keys, partition_id)),
    )
    monkeypatch.setattr(run_keeping, "tq", queue)
    trainer._load_checkpoint()
    assert cleared == [(["a", "b"], "val")]


def test_a_stop_in_an_evaluation_keeps_the_step_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron_agent.backend.stop import StopRequested, StopSwitch

    trainer = _trainer_that_keeps(tmp_path, 4, [])
    calls: list[str] = []
    trainer.checkpoint_manager = SimpleNamespace(
        abort_replicas=lambda: calls.append("abort"), sleep_replicas=lambda: calls.append("sleep")
    )
    monkeypatch.setattr(StopSwitch, "requested_since_s", classmethod(lambda _: 1.0))
    for _ in range(2):
        with pytest.raises(StopRequested, match="after step 4"):
            trainer._set_aside_when_asked_to_stop("val")
        assert trainer.checkpoints.is_complete(4)
    assert calls == ["abort", "sleep"]  # the second finds a checkpoint


def test_a_stop_in_a_run_that_only_evaluates_writes_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron_agent.backend.stop import StopRequested, StopSwitch

    trainer = _trainer_that_keeps(tmp_path, 4, [])
    trainer.config.trainer.val_only = True
    monkeypatch.setattr(StopSwitch, "requested_since_s", classmethod(lambda _: 1.0))
    with pytest.raises(StopRequested):
        trainer._set_aside_when_asked_to_stop("val")
    assert not trainer.checkpoints.folder(4).exists()


def test_verl_saves_a_step_then_evaluates_then_writes_its_metrics() -> None:
    """What a checkpoint must hold so that a run can end in between."""
    from verl.trainer.ppo.v1 import agent_loop_tq, trainer_base

    loop = inspect.getsource(trainer_base.PPOTrainer.fit).partition("while current_epoch")[2]
    order = ("self._save_checkpoint()", "self._validate()", "self.logger.log(data=metrics")
    places = [loop.index(part) for part in order]
    assert places == sorted(places)
    assert "self.global_steps % self.config.trainer.test_freq == 0" in loop
    assert 'else "val"' in inspect.getsource(agent_loop_tq)


def test_the_class_of_a_server_is_found_by_name_and_its_loader_takes_a_variable_away() -> None:
    """Why the launcher puts ``SGLANG_USE_CPU_ENGINE`` back."""
    from verl.workers.rollout import replica

    inspect.signature(replica.get_rollout_replica_class).bind("sglang")
    assert 'del os.environ["SGLANG_USE_CPU_ENGINE"]' in inspect.getsource(replica._load_sglang)
