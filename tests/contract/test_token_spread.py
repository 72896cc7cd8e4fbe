"""Rows' tensors made in the storage units are what readers got when they were sent one by one.

TransferQueue's own manager, message format and storage units run here, without Ray and sockets.
"""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.contract

NUM_TOKENS = np.array([3, 1, 2, 5, 1])
IN_LOSS = np.array([True, False, True, True, True])
KEYS = [f"a_0_{step}" for step in range(5)]


def storage_unit() -> Any:
    from transfer_queue.storage.simple_storage import SimpleStorageUnit, StorageUnitData

    unit: Any = object.__new__(SimpleStorageUnit.__ray_metadata__.modified_class)
    unit.storage_unit_id, unit.storage_data = "unit", StorageUnitData()
    return unit


def manager_of(units: dict[str, Any]) -> Any:
    """TransferQueue's manager, its messages packed and unpacked, but handed over by a call."""
    from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager
    from transfer_queue.utils.zmq_utils import ZMQMessage, ZMQRequestType

    def ask(kind: Any, target: str, handler: str, body: dict[str, Any]) -> Any:
        message = ZMQMessage.create(
            request_type=kind, sender_id="test", receiver_id=target, body=body
        )
        answer = getattr(units[target], handler)(ZMQMessage.deserialize(message.serialize()))
        return ZMQMessage.deserialize(answer.serialize())

    class Manager(AsyncSimpleStorageManager):
        def __init__(self) -> None:
            self.storage_manager_id, self.storage_unit_infos = "test", units
            self.noted: list[Any] = []

        async def _put_to_single_storage_unit(
            self, global_indexes, storage_data, target_storage_unit, data_parser=None
        ) -> None:
            body = {"global_indexes": global_indexes, "data": storage_data}
            answer = ask(
                ZMQRequestType.PUT_DATA,
                target_storage_unit,
                "_handle_put",
                body | {"data_parser": data_parser},
            )
            assert answer.request_type == ZMQRequestType.PUT_DATA_RESPONSE, answer.body

        async def _get_from_single_storage_unit(
            self, global_indexes, fields, target_storage_unit
        ) -> Any:
            body = {"global_indexes": global_indexes, "fields": fields}
            answer = ask(ZMQRequestType.GET_DATA, target_storage_unit, "_handle_get", body)
            return fields, answer.body["data"]

        async def notify_data_update(self, partition_id, global_indexes, field_schema, *_) -> None:
            self.noted.append((partition_id, global_indexes, sorted(field_schema)))

        def close(self) -> None:
            pass

    return Manager()


def meta_of(keys: list[str], *fields: str) -> Any:
    from transfer_queue import BatchMeta

    rows = [KEYS.index(key) for key in keys]
    return BatchMeta(
        global_indexes=[10 + row for row in rows],
        partition_ids=["train"] * len(rows),
        field_schema={name: {} for name in fields},
        production_status=np.ones(len(rows), dtype=np.int8),
        custom_meta=[{"response_len": int(NUM_TOKENS[row])} for row in rows],
    )


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client whose controller knows the rows of ``KEYS``, in two storage units."""
    import transfer_queue as tq

    def kv_retrieve_meta(keys: list[str], partition_id: str, create: bool = False) -> Any:
        assert not create
        return meta_of([key for key in keys if key in KEYS], "responses", "advantages")

    units = {"first": storage_unit(), "second": storage_unit()}
    client = SimpleNamespace(
        units=units,
        kv_retrieve_meta=kv_retrieve_meta,
        storage_manager=manager_of(units),
        _run_coroutine=asyncio.run,
    )
    monkeypatch.setattr(tq, "get_client", lambda: client)
    return client


def a_batch(keys: list[str] = KEYS) -> Any:
    from transfer_queue import KVBatchMeta

    tags = [{"response_len": int(n)} for n in NUM_TOKENS] + [{}] * (len(keys) - len(KEYS))
    return KVBatchMeta(keys=list(keys), tags=tags, partition_id="train", extra_info={"old": 1})


def a_credit(num_rows: int = 5) -> Any:
    from megatron_agent.backend.batch_credit import BatchCredit

    values_N = np.linspace(-1.0, 1.0, num_rows) / 3
    return BatchCredit(advantage_N=values_N, return_N=values_N + 7.0, metrics={})


def stored(client: Any) -> Any:
    return asyncio.run(client.storage_manager.get_data(meta_of(KEYS, "advantages", "returns")))


def test_readers_get_what_they_got_when_the_rows_tensors_were_sent(client: Any) -> None:
    from tensordict import TensorDict

    from megatron_agent.backend.advantage_phase import write_credit

    written = write_credit(a_batch(), a_credit(), NUM_TOKENS, IN_LOSS)
    made = stored(client)

    of_token = [
        torch.from_numpy(np.repeat((value_N * IN_LOSS).astype(np.float32), NUM_TOKENS))
        for value_N in (a_credit().advantage_N, a_credit().return_N)
    ]
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(NUM_TOKENS)]))
    sent = TensorDict(
        {
            name: torch.nested.nested_tensor_from_jagged(values, offsets)
            for name, values in zip(("advantages", "returns"), of_token, strict=True)
        },
        batch_size=5,
    )
    asyncio.run(client.storage_manager.put_data(sent, meta_of(KEYS)))
    for name, theirs in stored(client).items():
        assert made[name].layout == theirs.layout == torch.jagged
        assert made[name].dtype == theirs.dtype == torch.float32
        assert made[name].offsets().tolist() == theirs.offsets().tolist() == offsets.tolist()
        assert made[name].values().tolist() == theirs.values().tolist()

    assert client.storage_manager.noted[0] == (
        "train", [10, 11, 12, 13, 14], ["advantages", "returns"]
    )  # fmt: skip
    assert written.keys == KEYS
    assert written.tags == a_batch().tags
    assert written.partition_id == "train"
    assert written.fields == ["advantages", "responses", "returns"]
    assert written.extra_info == {}
    assert len(written) == 5


def test_a_row_has_memory_of_its_own_in_the_storage_unit(client: Any) -> None:
    from megatron_agent.backend.advantage_phase import write_credit

    write_credit(a_batch(), a_credit(), NUM_TOKENS, IN_LOSS)
    rows = [unit.storage_data.field_data["advantages"] for unit in client.units.values()]
    assert [sorted(of_unit) for of_unit in rows] == [[10, 12, 14], [11, 13]]
    for of_unit in rows:
        for index, row in of_unit.items():
            assert row.untyped_storage().nbytes() == 4 * NUM_TOKENS[index - 10]


def test_a_batch_with_rows_that_are_gone_is_refused(client: Any) -> None:
    from megatron_agent.backend.advantage_phase import write_credit

    with pytest.raises(RuntimeError, match="has 5 of 6 rows of the batch"):
        write_credit(
            a_batch([*KEYS, "gone"]),
            a_credit(6),
            np.array([*NUM_TOKENS, 1]),
            np.array([*IN_LOSS, True]),
        )


def test_transfer_queue_still_sends_tags_back_with_every_put() -> None:
    """When it does not, ``tq.kv_batch_put`` with ``data_parser`` is all that is needed."""
    from transfer_queue import TransferQueueClient

    source = inspect.getsource(TransferQueueClient.async_put)
    assert "await self.storage_manager.put_data(data, metadata, data_parser=" in source
    assert "await self.async_set_custom_meta(metadata)" in source
    assert callable(TransferQueueClient._run_coroutine)
    assert callable(TransferQueueClient.kv_retrieve_meta)


def test_a_put_with_a_parser_is_not_repeated_and_is_refused_by_other_storage() -> None:
    from transfer_queue.storage.managers.base import KVStorageManager
    from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager

    source = inspect.getsource(AsyncSimpleStorageManager.put_data)
    assert "max_attempts = 1 if data_parser is not None else None" in source
    with pytest.raises(NotImplementedError, match="data_parser is not supported"):
        asyncio.run(KVStorageManager.put_data(None, None, None, data_parser=dict))
