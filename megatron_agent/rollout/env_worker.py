"""The child's side of the environment pool: ``python -m megatron_agent.rollout.env_worker FD
PARENT_PID``.

A worker holds several environments and serves one request at a time over an inherited socket. It is
a plain program rather than a ``multiprocessing`` child, because spawning through multiprocessing
imports the parent's ``__main__`` again, and inside a Ray actor that is Ray's own worker program.
It ends when the socket closes, and on Linux also when its parent dies while an environment is busy;
whatever its environments started ends with it.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from envs.base import Observation, StepOutcome, TextEnv
from envs.registry import load_env
from megatron_agent.rollout.wire import (
    ERROR,
    OK,
    FrameError,
    encode_frame,
    plain_payload,
    read_frame,
)
from megatron_agent.rollout.worker_guard import signal_at_parents_death, start_guard

_MAX_REPR_CHARS = 200


class Worker:
    """The environments of this process by session key, and the operations on them."""

    def __init__(self) -> None:
        self._envs: dict[str, TextEnv] = {}

    def handle(self, operation: str, session_key: str, arguments: Mapping[str, Any]) -> Any:
        """Do one operation and return what the caller asked for; raises what the environment
        raises.
        """
        if operation == "reset":
            return self._reset(session_key, **arguments)
        if operation == "step":
            return self._step(session_key, **arguments)
        if operation == "close":
            return self._close(session_key)
        raise ValueError(f"operation must be reset, step or close, got {operation!r}.")

    def close_all(self) -> None:
        """Close every environment, whatever some of them raise."""
        for session_key in list(self._envs):
            try:
                self._close(session_key)
            except Exception:
                traceback.print_exc()

    def _reset(
        self, session_key: str, *, env: str, seed: int, options: Mapping[str, Any]
    ) -> Observation:
        if session_key not in self._envs:
            self._envs[session_key] = load_env(env).make()
        try:
            observation = self._envs[session_key].reset(seed=seed, options=dict(options))
            return checked_observation(observation, "reset()")
        except Exception:
            self._close(session_key)  # nobody will ask for it again
            raise

    def _step(self, session_key: str, *, action: str) -> StepOutcome:
        if session_key not in self._envs:
            raise RuntimeError("step() came before reset().")
        return checked_outcome(self._envs[session_key].step(action))

    def _close(self, session_key: str) -> None:
        env = self._envs.pop(session_key, None)
        if env is not None:
            env.close()


def checked_observation(observation: Any, origin: str) -> Observation:
    """``observation``, which ``origin`` gave; raises TypeError when it is none."""
    if not isinstance(observation, Observation):
        raise TypeError(f"{origin} must give an Observation, got {type(observation).__name__}.")
    if not isinstance(observation.text, str):
        raise TypeError(
            f"{origin} must give an Observation with a text, got {type(observation.text).__name__}."
        )
    return observation


def checked_outcome(outcome: Any) -> StepOutcome:
    """``outcome`` in plain values; raises TypeError or ValueError when ``step`` may not give it."""
    if not isinstance(outcome, StepOutcome):
        raise TypeError(f"step() must return a StepOutcome, got {type(outcome).__name__}.")
    reward = float(outcome.reward)
    if not math.isfinite(reward):
        raise ValueError(f"step() must return a finite reward, got {reward!r}.")
    return StepOutcome(
        observation=checked_observation(outcome.observation, "step()"),
        reward=reward,
        terminated=bool(outcome.terminated),
        truncated=bool(outcome.truncated),
        action_valid=bool(outcome.action_valid),
        info={str(key): plain(value) for key, value in outcome.info.items()},
    )


def plain(value: Any) -> Any:
    """``value`` as JSON-like data: what an environment puts into ``info`` must not make the parent
    import the environment's libraries to read it.

    Example:
        >>> plain({"won": True, "obj": object})
        {'won': True, 'obj': "<class 'object'>"}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain(value.item())  # a numpy scalar
    return repr(value)[:_MAX_REPR_CHARS]


def serve(connection: socket.socket) -> None:
    """Answer requests until the other end closes."""
    worker = Worker()
    with connection, connection.makefile("rb") as requests:
        connection.sendall(encode_frame((OK, os.getpid(), 0.0)))
        while True:
            try:
                operation, session_key, arguments = read_frame(requests)
            except (EOFError, ConnectionError, FrameError):
                break
            connection.sendall(_answer(worker, operation, session_key, arguments))
    worker.close_all()


def main() -> None:
    """Program entry: arguments are the socket's file descriptor and the parent's process id."""
    file_descriptor, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    _die_with_parent(parent_pid)
    start_guard()
    os.dup2(2, 1)  # what environments print on stdout goes where stderr goes
    serve(socket.socket(fileno=file_descriptor))


def _answer(
    worker: Worker, operation: str, session_key: str, arguments: Mapping[str, Any]
) -> bytes:
    started_s = time.perf_counter()
    try:
        payload = worker.handle(operation, session_key, arguments)
        seconds = time.perf_counter() - started_s
        return encode_frame((OK, plain_payload(payload), seconds))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        text = f"{operation} raised {type(error).__name__}: {error}"[:2000]
        return encode_frame((ERROR, text, time.perf_counter() - started_s))


def _die_with_parent(parent_pid: int) -> None:
    signal_at_parents_death(signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        sys.exit(1)


if __name__ == "__main__":
    main()
