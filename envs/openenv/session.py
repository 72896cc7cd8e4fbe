"""One session with an OpenEnv server: a WebSocket of its own, with deadlines.

OpenEnv's own package is not needed for it (it brings a web interface and some hundred other
packages). All sessions of a process share a thread that listens: servers drop whoever does not
answer their pings for 20 s, and between two steps an agent may think for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Coroutine, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from envs.openenv.wire import CAPACITY_REACHED, VALIDATION_ERROR, Answer, ServerError, read_answer

URL_VARIABLE = "MEGATRON_AGENT_OPENENV_URL"
TOKEN_VARIABLE = "MEGATRON_AGENT_OPENENV_TOKEN"
_MAX_MESSAGE_BYTES = 1 << 24
_RETRY_S = 0.1
_CLOSE_S = 1.0


class OpenEnvError(RuntimeError):
    """A server that is not there, is full or too slow, or answers something else; the message names
    it and the remedy.
    """


class Session:
    """A session, opened by the first `reset`. Not for several threads.

    Args:
        url: ``http://host:port`` of the server, with a path where it lives below one; ``https``,
            ``ws`` and ``wss`` work too.
        deadline_s: for one request, connecting included.
        token: sent as a bearer token; by default the variable ``MEGATRON_AGENT_OPENENV_TOKEN``.
    """

    def __init__(self, url: str, *, deadline_s: float, token: str | None = None) -> None:
        self.url = url
        self._deadline_s = deadline_s
        self._token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None

    def reset(self, parameters: Mapping[str, Any]) -> Answer:
        """Start an episode. A full server is asked again until the deadline: places of sessions
        that were just closed become free a little later.

        Args:
            parameters: what the environment's ``reset`` takes, such as ``seed``.

        Raises:
            OpenEnvError: see there.
        """
        ends_s = time.monotonic() + self._deadline_s
        if self._socket is not None and self._socket.closed:
            self.close()  # the server was started anew, or tired of waiting
        while True:
            try:
                return self._ask("reset", parameters)
            except ServerError as error:
                self.close()
                if error.code != CAPACITY_REACHED:
                    raise self._error(f"refused to reset: {error}") from error
                if time.monotonic() > ends_s:
                    raise self._error(
                        f"has no place for another session ({error})",
                        "Start it with max_concurrent_envs of at least the sessions of an "
                        "iteration (data.train_batch_size x env.rollout.n)",
                    ) from error
            time.sleep(_RETRY_S)

    def step(self, action: Mapping[str, Any]) -> Answer | None:
        """Act; None when the server's schema refuses the action, which changes nothing.

        Raises:
            OpenEnvError: see there.
        """
        try:
            return self._ask("step", action)
        except ServerError as error:
            if error.code == VALIDATION_ERROR:
                return None
            self.close()
            raise self._error(
                f"failed in a step: {error}",
                "Its step() should answer an illegal action by an observation; look at its log",
            ) from error

    def close(self) -> None:
        """End the session; harmless when called twice."""
        if self._client is not None:
            _wait_for(self._hang_up())

    def _ask(self, kind: str, data: Mapping[str, Any]) -> Answer:
        try:
            text = _wait_for(self._exchange(json.dumps({"type": kind, "data": data})))
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one
            self.close()  # an answer that comes late must not be taken for the next one
            if isinstance(error, TimeoutError):
                what = f"did not answer within {self._deadline_s:g} s"
                raise self._error(
                    what, "Raise env.options.deadline_s, or look at its log"
                ) from None
            raise self._error(f"cannot be reached ({type(error).__name__}: {error})") from error
        try:
            return read_answer(text)
        except ValueError as error:
            self.close()
            raise self._error(
                f"answered something else than OpenEnv's protocol ({error}): {text[:200]!r}"
            ) from error

    async def _exchange(self, message: str) -> str:
        async with asyncio.timeout(self._deadline_s):
            if self._socket is None:
                await self._connect()
            assert self._socket is not None
            # A full server says so and hangs up before it is asked: its words are in the inbox.
            with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                await self._socket.send_str(message)
            answer = await self._inbox.get()
        if answer is None:
            raise ConnectionResetError("the server hung up")
        return answer

    async def _connect(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._client = aiohttp.ClientSession(headers=headers)
        self._socket = await self._client.ws_connect(
            socket_url(self.url),
            max_msg_size=_MAX_MESSAGE_BYTES,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
        )
        self._inbox = asyncio.Queue()
        self._reader = asyncio.create_task(self._listen(self._socket, self._inbox))

    async def _listen(
        self, socket: aiohttp.ClientWebSocketResponse, inbox: asyncio.Queue[str | None]
    ) -> None:
        # Pings are answered in here, which is why it never stops listening.
        try:
            async for message in socket:
                is_text = message.type is aiohttp.WSMsgType.TEXT
                inbox.put_nowait(message.data if is_text else None)
        finally:
            inbox.put_nowait(None)

    async def _hang_up(self) -> None:
        client, socket, reader = self._client, self._socket, self._reader
        self._client = self._socket = self._reader = None
        if reader is not None:
            reader.cancel()
        with contextlib.suppress(ConnectionError, aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(2 * _CLOSE_S):
                if socket is not None and not socket.closed:
                    await socket.send_str('{"type": "close"}')
                    await socket.close()
        if client is not None:
            await client.close()

    def _error(self, what: str, remedy: str = "") -> OpenEnvError:
        remedy = remedy or f"Start it, or correct env.options.url or {URL_VARIABLE}"
        return OpenEnvError(f"the OpenEnv server {self.url} {what}. {remedy}.")


def fetch_json(url: str, path: str, *, deadline_s: float) -> Any:
    """The answer to ``GET path`` of the server, e.g. of ``/schema``.

    Raises:
        OpenEnvError: no such answer.
    """

    async def fetch() -> Any:
        timeout = aiohttp.ClientTimeout(total=deadline_s)
        token = os.environ.get(TOKEN_VARIABLE, "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as client,
            client.get(http_url(url) + path) as response,
        ):
            response.raise_for_status()
            return await response.json()

    try:
        return _wait_for(fetch())
    except (aiohttp.ClientError, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise OpenEnvError(
            f"the OpenEnv server {url} gives no answer to GET {path} ({reason}). Start it, or "
            f"correct env.options.url or {URL_VARIABLE}."
        ) from error


def is_server_url(url: str) -> bool:
    """Whether ``url`` can be the address of a server.

    Example:
        >>> is_server_url("https://owner-hunt.hf.space"), is_server_url("localhost:8000")
        (True, False)
    """
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https", "ws", "wss") and bool(parts.hostname)
    except ValueError:
        return False


def http_url(url: str) -> str:
    """The address for plain requests, without a slash or ``/ws`` at its end.

    Example:
        >>> http_url("wss://hunt.example/ws")
        'https://hunt.example'
    """
    url = url.rstrip("/").removesuffix("/ws")
    return url.replace("ws", "http", 1) if url.startswith("ws") else url


def socket_url(url: str) -> str:
    """The address of the sessions.

    Example:
        >>> socket_url("http://127.0.0.1:8000/")
        'ws://127.0.0.1:8000/ws'
    """
    return http_url(url).replace("http", "ws", 1) + "/ws"


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="openenv sessions", daemon=True).start()
    return loop


def _wait_for[T](work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()
