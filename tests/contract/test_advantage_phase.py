"""The short way of the advantage phase writes what verl's own phase writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict

pytestmark = pytest.mark.contract

LENGTHS = (3, 1, 2)


def jagged(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(values, layout=torch.jagged)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """A TransferQueue of one batch of three rows: an episode's row, padding, a stepless session."""
    import transfer_queue as tq

    masks = [torch.ones(3), torch.zeros(1), torch.zeros(2)]
    stored: dict[str, Any] = {
        "uid": NonTensorStack("a", "a", "b"),
        "response_mask": jagged(masks),
        "rm_scores": jagged([torch.zeros(n) for n in LENGTHS]),
        "rollout_log_probs": jagged([torch.full((n,), -0.5) for n in LENGTHS]),
        "old_log_probs": jagged([torch.full((n,), -0.5) for n in LENGTHS]),
    }

    def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        found = {name: stored[name] for name in select_fields if name in stored}
        return TensorDict(found, batch_size=len(keys))

    def kv_batch_put(keys: list[str], partition_id: str, fields: TensorDict) -> Any:
        stored.update({name: fields[name] for name in fields.keys()})  # noqa: SIM118 - a TensorDict
        return "written"

    monkeypatch.setattr(tq, "kv_batch_get", kv_batch_get)
    monkeypatch.setattr(tq, "kv_batch_put", kv_batch_put)
    return stored


class Batch(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.keys)


def a_batch() -> Any:
    tags = [{"response_len": n} for n in LENGTHS]
    return Batch(keys=["a_0_0", "a_0_0_pad", "b_0_0"], partition_id="train", tags=tags)


def algorithm(**changes: Any) -> Any:
    correction = {"rollout_is": None, "rollout_rs": None, "bypass_mode": False}
    return OmegaConf.create(
        {
            "adv_estimator": "agent_credit",
            "gamma": 1.0,
            "lam": 1.0,
            "use_kl_in_reward": False,
            "rollout_correction": correction,
        }
        | changes
    )


@pytest.mark.parametrize("how", ["other storage", "no answer"])
def test_what_is_sent_token_by_token_is_what_verl_would_have_written(
    queue: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    import transfer_queue as tq
    from transfer_queue.storage.managers.simple_storage_manager import StorageUnitTimeout
    from verl.trainer.ppo.v1 import PPOTrainerSync

    from megatron_agent.backend.advantage_phase import (
        credit_for_estimator,
        num_response_tokens,
        write_credit,
    )
    from megatron_agent.backend.batch_credit import BatchCredit

    credit = BatchCredit(
        advantage_N=np.array([0.5, 0.0, 7.0]), return_N=np.array([2.0, 0.0, 7.0]), metrics={}
    )
    batch = a_batch()
    trainer: Any = object.__new__(PPOTrainerSync)
    trainer.config = OmegaConf.create(
        {
            "algorithm": algorithm(rollout_correction=None),
            "actor_rollout_ref": {"rollout": {"n": 1}},
        }
    )
    with credit_for_estimator(credit):
        trainer._compute_advantage(batch, {})
    theirs = {name: queue.pop(name) for name in ("advantages", "returns")}

    def refuse(coroutine: Any) -> None:
        raise NotImplementedError if how == "other storage" else StorageUnitTimeout

    client = SimpleNamespace(
        kv_retrieve_meta=lambda keys, partition_id: SimpleNamespace(size=len(keys)),
        storage_manager=SimpleNamespace(put_data=lambda *_, **__: None),
        _run_coroutine=refuse,
    )
    monkeypatch.setattr(tq, "get_client", lambda: client)
    in_loss_N = np.array([True, False, False])
    assert write_credit(batch, credit, num_response_tokens(batch), in_loss_N) == "written"
    for name, their_values in theirs.items():
        assert queue[name].offsets().tolist() == their_values.offsets().tolist() == [0, 3, 4, 6]
        assert queue[name].values().tolist() == their_values.values().tolist()
    assert queue["advantages"].values().tolist() == [0.5, 0.5, 0.5, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, False),
        ({"rollout_correction": None}, False),
        ({"use_kl_in_reward": True}, True),
        ({"rollout_correction": {"rollout_is": "token"}}, True),
        ({"rollout_correction": {"rollout_rs": "sequence"}}, True),
        ({"rollout_correction": {"rollout_is": "token", "bypass_mode": True}}, False),
    ],
)
def test_verls_phase_runs_where_it_has_more_to_do(changes: dict[str, Any], needed: bool) -> None:
    from megatron_agent.backend.advantage_phase import needs_verls_phase

    assert needs_verls_phase(algorithm(**changes)) is needed


def test_the_agent_loop_tags_rows_with_the_length_of_their_response() -> None:
    import inspect

    from verl.trainer.ppo import padding_utils
    from verl.trainer.ppo.v1 import agent_loop_tq

    assert '"response_len": response_len' in inspect.getsource(agent_loop_tq)
    assert "response_len=1" in inspect.getsource(padding_utils)


def test_log_probs_and_entropies_are_stored_where_credit_methods_get_them_from() -> None:
    import inspect

    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from megatron_agent.backend.trainer import FIELD_OF_COLUMN, _per_row

    source = inspect.getsource(PPOTrainer._compute_old_log_prob)
    assert 'data.select("old_log_probs", "entropy")' in source
    assert FIELD_OF_COLUMN == {"log_prob": "old_log_probs", "entropy": "entropy"}
    data = TensorDict(
        {"old_log_probs": jagged([torch.tensor([-1.0, -2.0]), torch.tensor([-0.5])])},
        batch_size=2,
    )
    assert _per_row(data, "old_log_probs", torch.sum).tolist() == [-3.0, -0.5]
    assert _per_row(data, "entropy", torch.mean) is None
