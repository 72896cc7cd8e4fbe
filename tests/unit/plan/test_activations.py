"""Activations and logits, counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from megatron_agent.plan import activations
from megatron_agent.plan.records import Job

pytestmark = pytest.mark.unit

MakeJob = Callable[..., Job]


def test_a_layer_by_hand(make_job: MakeJob) -> None:
    job = make_job()
    # 7B: h 3584, 28 query heads and 4 key-value heads of 128, ffn 18944; bytes per token.
    streams = 4 * 3584 * 2
    attention = ((3584 + 2 * 512) + (3584 + 512) + 3584) * 2 + 28 * 4
    mlp = 3 * 18944 * 2
    assert activations.layer_bytes(job, 100) == 100 * (streams + attention + mlp)


def test_tensor_parallelism_cuts_all_of_a_layer_only_with_sequence_parallelism(
    make_job: MakeJob,
) -> None:
    whole = activations.layer_bytes(make_job(), 1024)
    cut = activations.layer_bytes(make_job(tensor=2), 1024)
    streams_stay = activations.layer_bytes(make_job(tensor=2, sequence_parallel=False), 1024)
    assert cut == whole // 2
    assert streams_stay == cut + 4 * 3584 * 2 * 1024 // 2


def test_recompute_keeps_one_residual_stream_a_layer_and_one_layer(make_job: MakeJob) -> None:
    job = make_job(recompute_layers=1)
    kept = 28 * 2 * 3584 * 8192 + activations.layer_bytes(job, 8192)
    assert activations.stage_bytes(job, 0, 4) == kept + activations.working_bytes(job, 8192)


@pytest.mark.parametrize(
    ("pipeline", "virtual", "stage", "count", "layers"),
    [
        (1, 1, 0, 9, 28),
        (4, 1, 0, 9, 28),  # four micro-batches of seven layers
        (4, 1, 3, 9, 7),
        (4, 1, 0, 2, 14),  # there are only two micro-batches
        (2, 7, 0, 8, 2 * ((2 - 1) * 2 + 6 * 2 + 1)),  # Megatron's warm-up and the one that runs
        (2, 7, 1, 8, 2 * (6 * 2 + 1)),
    ],
)
def test_layers_in_flight(
    make_job: MakeJob, pipeline: int, virtual: int, stage: int, count: int, layers: int
) -> None:
    job = make_job(pipeline=pipeline, virtual_pipeline=virtual)
    assert activations.layers_in_flight(job, stage, count) == layers


def test_logits_by_hand(make_job: MakeJob) -> None:
    def of(entropy: bool, **changes: object) -> int:
        job = make_job(tensor=2, **changes)
        return activations.logits_bytes(job, 1000, with_entropy=entropy, with_grad=True)

    columns = 152064 // 2
    assert of(False) == 1000 * columns * (2 + 4)
    assert of(True) == 1000 * columns * (2 + 4 + 4 + 4)
    assert of(True, fused_kernels=True) == 1000 * (2 * 9504 + 4 * 3584)


def test_an_expert_layer_holds_each_token_as_often_as_it_is_routed(make_job: MakeJob) -> None:
    job = make_job("qwen3-30b-a3b", expert=8, expert_tensor=1)
    dense = ((4096 + 2 * 512) + (4096 + 512) + 4096 + 4096) * 2 + 32 * 4 + 4 * 2048 * 2
    experts = 8 * (3 * 768 + 2 * 2048) * 2 + 2 * 4 * 128
    assert activations.layer_bytes(job, 10) == 10 * (dense + experts)
