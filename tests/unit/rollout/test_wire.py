"""Frames between the pool and its workers, and the worker's own handling of requests."""

from __future__ import annotations

import dataclasses
import io
import pickle
import struct

import numpy as np
import pytest

from envs.base import Observation, StepOutcome
from megatron_agent.rollout.env_worker import Worker, plain
from megatron_agent.rollout.wire import (
    MAX_FRAME_BYTES,
    FrameDecoder,
    FrameError,
    encode_frame,
    plain_payload,
    read_frame,
    whole_payload,
)

pytestmark = pytest.mark.unit


def read_both_ways(data: bytes) -> object:
    decoder = FrameDecoder()
    in_pieces = [message for byte in data for message in decoder.feed(bytes([byte]))]
    blocking = read_frame(io.BytesIO(data))
    assert in_pieces == [blocking]
    return blocking


def test_a_message_arrives_as_it_was_sent():
    message = ("step", "1", {"action": "\ud800 left"})
    assert read_both_ways(encode_frame(message)) == message


def test_what_an_environment_says_arrives_as_it_was_said():
    observation = Observation(
        text="a room",
        anchor=("room", 1),
        admissible_actions=("left", "right"),
        image=np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
        task="find the door",
    )
    outcome = StepOutcome(
        observation=observation,
        reward=0.5,
        terminated=True,
        truncated=False,
        action_valid=False,
        info={"success": True},
    )
    arrived = whole_payload("step", pickle.loads(pickle.dumps(plain_payload(outcome))))
    assert type(arrived) is StepOutcome and type(arrived.observation) is Observation
    np.testing.assert_array_equal(arrived.observation.image, observation.image)
    without = dataclasses.replace(observation, image=None)
    assert dataclasses.replace(arrived.observation, image=None) == without
    assert dataclasses.replace(arrived, observation=without) == dataclasses.replace(
        outcome, observation=without
    )


def test_every_field_travels():
    fields = {field.name for field in dataclasses.fields(Observation)}
    assert fields == {"text", "anchor", "admissible_actions", "image", "task"}, "add it to wire.py"
    fields = {field.name for field in dataclasses.fields(StepOutcome)}
    assert len(fields) == 6, "add it to wire.py"


@pytest.mark.parametrize(
    ("operation", "plain"),
    [("step", None), ("step", ()), ("step", ((), ())), ("reset", None), ("reset", ("a room",))],
)
def test_what_no_worker_says_is_refused(operation: str, plain: tuple[object, ...] | None):
    with pytest.raises((TypeError, ValueError)):
        whole_payload(operation, plain)


def test_messages_that_arrive_at_once_are_told_apart():
    frames = encode_frame(1) + encode_frame("two") + encode_frame(3)[:-1]
    assert list(FrameDecoder().feed(frames)) == [1, "two"]


def test_a_length_beyond_reason_is_garbage():
    with pytest.raises(
        FrameError, match=rf"at most {MAX_FRAME_BYTES} bytes, got 72340172838076673"
    ):
        read_frame(io.BytesIO(b"\x01" * 64))


def test_a_body_that_is_no_pickle_is_garbage():
    with pytest.raises(FrameError, match="must be a pickle"):
        read_frame(io.BytesIO(struct.pack(">Q", 4) + b"abcd"))


@pytest.mark.parametrize("data", [b"", b"\x00" * 3, encode_frame("x")[:-1]])
def test_a_stream_that_ends_early_is_an_end(data: bytes):
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(data))


def test_info_becomes_plain_data():
    value = {
        1: np.int64(2),
        "list": (np.float32(0.5), None),
        "array": np.zeros(2),
        "deep": {"a": b"x"},
    }
    assert plain(value) == {
        "1": 2,
        "list": [0.5, None],
        "array": "array([0., 0.])",
        "deep": {"a": "b'x'"},
    }
    assert len(plain("x" * 1000)) == 1000
    assert len(plain(b"x" * 1000)) == 200


def test_a_worker_knows_three_operations():
    with pytest.raises(ValueError, match="operation must be reset, step or close, got 'dance'"):
        Worker().handle("dance", "1", {})


def test_a_worker_steps_only_what_was_reset():
    worker = Worker()
    with pytest.raises(RuntimeError, match=r"step\(\) came before reset\(\)"):
        worker.handle("step", "1", {"action": "left"})
    assert worker.handle("close", "1", {}) is None


def test_an_environment_whose_reset_fails_is_not_kept():
    worker = Worker()
    with pytest.raises(ValueError, match="option 'size'"):
        worker.handle("reset", "1", {"env": "frozenlake", "seed": 0, "options": {"size": 1}})
    assert worker._envs == {}
