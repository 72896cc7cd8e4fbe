"""Weights from the trainer to inference servers in other processes, over gloo.

verl's checkpoint engines for rollout on its own devices (mode ``separate_async``) need NCCL, RDMA
or shared device memory. This one broadcasts from the first trainer rank in buckets. It registers
under the name ``gloo`` through verl's own door for further engines
(``rollout.checkpoint_engine.custom_backend_module``).

Who takes part finds the others through a file, so all of them run on one machine and no port is
opened for it; gloo itself connects on ``GLOO_SOCKET_IFNAME``.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

TIMEOUT = timedelta(minutes=10)
LAST = b"[]"
"""Description of the bucket that is none: everything was sent."""

NamedTensor = tuple[str, torch.Tensor]


@CheckpointEngineRegistry.register("gloo")
class GlooCheckpointEngine(CheckpointEngine):
    """One broadcast group of the first trainer rank and all rollout workers, made for each update.

    Args:
        bucket_size: bytes that travel at once; a larger tensor travels alone.
        is_master: whether this is the first trainer rank.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.bucket_size, self.is_master = bucket_size, is_master
        self._file: Path | None = None
        self._store: Any = None
        self._group: Any = None

    def prepare(self) -> dict[str, Any]:
        """Where the group meets, from the one who names the place."""
        if not self.is_master:
            return {}
        handle, path = tempfile.mkstemp(prefix="weights-", suffix=".store")
        os.close(handle)
        self._file = Path(path)
        return {"path": path}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Rank 0 sends, rollout workers are 1 and up, other trainer ranks (-1) stay outside."""
        world_size = 1 + rollout_world_size

        def arguments(ranks: Sequence[int]) -> dict[str, list[Any]]:
            return {
                "rank": list(ranks),
                "world_size": [world_size] * len(ranks),
                "path": [metadata[0]["path"]] * len(ranks),
            }

        return (
            arguments([0] + [-1] * (actor_wg_world_size - 1)),
            arguments(range(1, world_size)),
        )

    def init_process_group(self, rank: int, world_size: int, path: str) -> None:
        if rank < 0:
            return
        self._store = dist.FileStore(path, world_size)
        self._group = dist.ProcessGroupGloo(self._store, rank, world_size, TIMEOUT)

    def finalize(self) -> None:
        self._group = self._store = None
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None

    async def send_weights(
        self, weights: Iterable[NamedTensor], global_steps: int | None = None
    ) -> None:
        """Walk ``weights`` to the end in any case: to make each is collective among trainer
        ranks.
        """
        if self._group is None:
            for _ in weights:
                pass
            return
        num_sent = 0
        for bucket in _buckets(weights, self.bucket_size):
            described = [
                (name, list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
                for name, tensor in bucket
            ]
            flat = torch.cat([_as_bytes(tensor) for _, tensor in bucket])
            self._store.set(str(num_sent), json.dumps(described))
            await self._broadcast(flat)
            num_sent += 1
        self._store.set(str(num_sent), LAST)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[NamedTensor, None]:
        """Yields name and tensor in the order in which they were sent."""
        num_received = 0
        while True:
            described = await asyncio.to_thread(self._store.get, str(num_received))
            if described == LAST:
                return
            layout = [
                (name, torch.Size(shape), getattr(torch, dtype))
                for name, shape, dtype in json.loads(described)
            ]
            sizes = [shape.numel() * dtype.itemsize for _, shape, dtype in layout]
            flat = torch.empty(sum(sizes), dtype=torch.uint8)
            await self._broadcast(flat)
            for (name, shape, dtype), part in zip(layout, flat.split(sizes), strict=True):
                # A copy: a part may begin where its type may not, and views keep the bucket alive.
                yield name, part.clone().view(dtype).view(shape)
            num_received += 1

    async def _broadcast(self, flat: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        work = self._group.broadcast([flat], options)
        await asyncio.to_thread(work.wait)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _buckets(weights: Iterable[NamedTensor], bucket_size: int) -> Iterator[list[NamedTensor]]:
    """Cut the stream into lists of at most ``bucket_size`` bytes, of one tensor at least."""
    bucket: list[NamedTensor] = []
    num_bytes = 0
    for name, tensor in weights:
        if bucket and num_bytes + tensor.nbytes > bucket_size:
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append((name, tensor))
        num_bytes += tensor.nbytes
    if bucket:
        yield bucket
