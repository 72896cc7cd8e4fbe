"""Credit on its way into the batch: one number per row becomes one per token, in TransferQueue.

There are two ways. Where verl's advantage phase has something to do besides (KL in the reward, a
correction of the rollout's probabilities), its own code runs, and meets the credit in the estimator
that is registered here. Where it has not, it would still fetch six tensors of every row, pad them
and write them back, which for 3,072 rows takes some seconds; then two tensors are written and none
is fetched (``benchmarks/credit_phase.py`` measures both).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import register_adv_est

from megatron_agent.backend.batch_credit import BatchCredit
from megatron_agent.backend.names import ESTIMATOR_NAME, TRAINER_PREFIX

_row_credit: ContextVar[BatchCredit | None] = ContextVar("row_credit", default=None)


@contextmanager
def credit_for_estimator(credit: BatchCredit) -> Iterator[None]:
    """Let :func:`spread_row_credit` find ``credit`` while verl's phase runs."""
    token = _row_credit.set(credit)
    try:
        yield
    finally:
        _row_credit.reset(token)


@register_adv_est(ESTIMATOR_NAME)
def spread_row_credit(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give every response token the advantage and the return of its row.

    Args:
        token_level_rewards: (N, L), unused: the rewards are already in the credit.
        response_mask: (N, L), 1 for sampled tokens.

    Returns:
        Advantages and returns, both (N, L).

    Raises:
        RuntimeError: outside of :func:`credit_for_estimator`.
    """
    credit = _row_credit.get()
    if credit is None:
        raise RuntimeError(f"{ESTIMATOR_NAME} works only inside an {TRAINER_PREFIX}* trainer.")

    def spread(value_N: np.ndarray) -> torch.Tensor:
        on_device = torch.as_tensor(value_N, dtype=torch.float32, device=response_mask.device)
        return on_device[:, None] * response_mask

    return spread(credit.advantage_N), spread(credit.return_N)


def needs_verls_phase(algorithm: DictConfig) -> bool:
    """Whether verl's advantage phase does more than call the estimator.

    A ``rollout_correction`` that neither weighs nor rejects only measures how far the servers'
    probabilities are from the actor's, which the log has as ``training/rollout_probs_diff_*``.
    """
    correction = algorithm.get("rollout_correction", None) or {}
    corrects = any(correction.get(key) is not None for key in ("rollout_is", "rollout_rs"))
    return bool(algorithm.use_kl_in_reward) or (corrects and not correction.get("bypass_mode"))


def num_response_tokens(batch: KVBatchMeta) -> np.ndarray:
    """(N,) tokens of each row's response, as the agent loop tagged them."""
    return np.array([int(tag["response_len"]) for tag in batch.tags])


def write_credit(
    batch: KVBatchMeta, credit: BatchCredit, num_tokens_N: np.ndarray, is_in_loss_N: np.ndarray
) -> KVBatchMeta:
    """Write ``advantages`` and ``returns`` beside each row's responses, as verl's phase does.

    Args:
        batch: the rows.
        credit: one advantage and one return per row.
        num_tokens_N: tokens of each row's response.
        is_in_loss_N: rows whose tokens are trained on. The others get 0.
    """
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(num_tokens_N)]))

    def spread(value_N: np.ndarray) -> torch.Tensor:
        value_of_token = np.repeat((value_N * is_in_loss_N).astype(np.float32), num_tokens_N)
        return torch.nested.nested_tensor_from_jagged(torch.from_numpy(value_of_token), offsets)

    fields = TensorDict(
        {"advantages": spread(credit.advantage_N), "returns": spread(credit.return_N)},
        batch_size=len(batch.keys),
    )
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
