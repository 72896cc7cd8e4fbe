"""Credit on its way into the batch: one number per row becomes one per token, in TransferQueue.

There are two ways. Where verl's advantage phase has something to do besides (KL in the reward, a
correction of the rollout's probabilities), its own code runs, and meets the credit in the estimator
that is registered here. Where it has not, it would still fetch six tensors of every row, pad them
and write them back, which for 3,072 rows takes some seconds; then nothing is fetched, and two
numbers a row are sent (``benchmarks/credit_phase.py`` measures both).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from transfer_queue.storage.managers.simple_storage_manager import StorageUnitTimeout
from verl.trainer.ppo.core_algos import register_adv_est

from megatron_agent.backend.batch_credit import BatchCredit
from megatron_agent.backend.names import ESTIMATOR_NAME, TRAINER_PREFIX
from megatron_agent.backend.token_spread import table, tokens_of_rows

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

    Returns:
        The rows with their tags and with the names of all their fields.
    """
    value_of_field = {
        "advantages": (credit.advantage_N * is_in_loss_N).astype(np.float32),
        "returns": (credit.return_N * is_in_loss_N).astype(np.float32),
    }
    try:
        return _put_tables(batch, value_of_field, num_tokens_N)
    except (NotImplementedError, StorageUnitTimeout):
        # Other storage than SimpleStorage takes no data_parser. And where SimpleStorage does not
        # answer, TransferQueue asks again, but not for a put with a parser, which might do harm.
        return _put_tensors(batch, value_of_field, num_tokens_N)


def _put_tables(
    batch: KVBatchMeta, value_of_field: dict[str, np.ndarray], num_tokens_N: np.ndarray
) -> KVBatchMeta:
    """One small table a field, of which the storage units make the rows' tensors.

    ``tq.kv_batch_put`` would do, but every put of its sends the rows' tags, which it has just been
    sent, back to the controller and copies them four times on the way. That takes longer than all
    else.
    """
    tables = TensorDict(
        {name: table(value_N, num_tokens_N) for name, value_N in value_of_field.items()},
        batch_size=len(batch.keys),
    )
    client = tq.get_client()
    meta = client.kv_retrieve_meta(keys=batch.keys, partition_id=batch.partition_id)
    if meta.size != len(batch.keys):
        raise RuntimeError(f"TransferQueue has {meta.size} of {len(batch.keys)} rows of the batch.")
    client._run_coroutine(client.storage_manager.put_data(tables, meta, data_parser=tokens_of_rows))
    written = copy(batch)  # its constructor would copy every tag
    written.tags = meta.custom_meta
    written.fields = sorted({*meta.field_names, *value_of_field})
    written.extra_info = {}  # of earlier calls to workers; verl's puts drop it, too
    return written


def _put_tensors(
    batch: KVBatchMeta, value_of_field: dict[str, np.ndarray], num_tokens_N: np.ndarray
) -> KVBatchMeta:
    """One tensor a row and field, each a message part of its own."""
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(num_tokens_N)]))

    def jagged(value_N: np.ndarray) -> torch.Tensor:
        value_of_token = torch.from_numpy(np.repeat(value_N, num_tokens_N))
        return torch.nested.nested_tensor_from_jagged(value_of_token, offsets)

    tensors = TensorDict(
        {name: jagged(value_N) for name, value_N in value_of_field.items()},
        batch_size=len(batch.keys),
    )
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=tensors)
