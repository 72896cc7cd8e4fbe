"""What travels between the pool and its worker processes: length-prefixed pickles.

Both ends are ours and talk over a private socket pair, so pickles are safe here. A request is
``(operation, session_key, arguments)``; a reply is ``(status, payload, seconds)``. Observations and
outcomes, which every step needs, travel as the values of their fields: pickle's own way with frozen
dataclasses takes four times as long.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from envs.base import Observation, StepOutcome

MAX_FRAME_BYTES = 256 * 2**20
"""More than any observation; a larger length means that the stream holds garbage."""

OK, ERROR = "ok", "error"

_HEADER = struct.Struct(">Q")


class FrameError(ValueError):
    """Bytes on the wire that are not a frame."""


def plain_payload(payload: Observation | StepOutcome | None) -> tuple[Any, ...] | None:
    """What an environment said, as the values of its fields."""
    if payload is None:
        return None
    if isinstance(payload, StepOutcome):
        return (
            plain_payload(payload.observation),
            payload.reward,
            payload.terminated,
            payload.truncated,
            payload.action_valid,
            payload.info,
        )
    return (
        payload.text,
        payload.anchor,
        payload.admissible_actions,
        payload.image,
        payload.task,
    )


def whole_payload(operation: str, plain: Any) -> Observation | StepOutcome | None:
    """The other way round; raises TypeError or ValueError for what `plain_payload` did not make."""
    if operation == "reset":
        return _whole_observation(plain)
    if operation != "step":
        return None
    observation, reward, terminated, truncated, action_valid, info = plain
    return StepOutcome(
        observation=_whole_observation(observation),
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        action_valid=action_valid,
        info=info,
    )


def _whole_observation(plain: Any) -> Observation:
    text, anchor, admissible_actions, image, task = plain
    return Observation(
        text=text, anchor=anchor, admissible_actions=admissible_actions, image=image, task=task
    )


def encode_frame(message: Any) -> bytes:
    """``message`` as bytes; raises whatever pickle raises for what cannot be pickled."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> Any:
    """Next message of a blocking stream.

    Raises:
        EOFError: the other end is gone.
        FrameError: not a frame.
    """
    size = _body_size(_read_exactly(stream, _HEADER.size))
    return _decode(_read_exactly(stream, size))


class FrameDecoder:
    """Messages out of bytes that arrive in pieces.

    Example:
        >>> decoder, frame = FrameDecoder(), encode_frame("hello")
        >>> list(decoder.feed(frame[:5])), list(decoder.feed(frame[5:]))
        ([], ['hello'])
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that ``data`` completes, in order.

        Raises:
            FrameError: not a frame; nothing after it can be understood.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            end = _HEADER.size + _body_size(self._buffer)
            if len(self._buffer) < end:
                return
            message = _decode(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield message


def _body_size(header: bytes | bytearray) -> int:
    (size,) = _HEADER.unpack_from(header)
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"a frame must have at most {MAX_FRAME_BYTES} bytes, got {size}.")
    return size


def _decode(body: bytes | bytearray) -> Any:
    try:
        return pickle.loads(body)  # noqa: S301 - from a process that we started
    except Exception as error:  # garbage makes pickle raise nearly anything
        raise FrameError(f"a frame must be a pickle: {type(error).__name__}: {error}") from error


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
