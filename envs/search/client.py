r"""Asking a retrieval server: Search-R1's request, with a deadline, and errors that say what to do.

    POST /retrieve  {"queries": ["..."], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"contents": "\"Title\"\ntext"}, "score": 7.1}, ...]]}

Answers of servers that leave the scores out, or that give ``title`` and ``text`` apart, are read
too.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from envs.printable import one_line
from envs.search.passages import Passage, passage_from_contents

URL_VARIABLE = "MEGATRON_AGENT_RETRIEVAL_URL"
TOKEN_VARIABLE = "MEGATRON_AGENT_RETRIEVAL_TOKEN"
_CHUNK_BYTES = 1 << 16
_MAX_ANSWER_BYTES = 1 << 24


class RetrievalError(RuntimeError):
    """A server that is not there, is too slow, or answers something else; names it and the
    remedy.
    """


class RetrievalClient:
    """Searches by a server.

    Args:
        url: ``http://host:port``, with a path where it is not ``/retrieve``.
        deadline_s: for one search, all in all.
        token: sent as a bearer token; by default the variable ``MEGATRON_AGENT_RETRIEVAL_TOKEN``.

    Raises:
        ValueError: not a URL of http or https.
    """

    def __init__(self, url: str, *, deadline_s: float, token: str | None = None) -> None:
        if not is_server_url(url):
            raise ValueError(
                f"the address of a retrieval server must look like http://127.0.0.1:8000, "
                f"got {url!r}."
            )
        parts = urlsplit(url)
        self._url = url
        self._host, self._port = parts.hostname or "", parts.port
        self._is_https = parts.scheme == "https"
        self._path = parts.path if parts.path.strip("/") else "/retrieve"
        self._deadline_s = deadline_s
        self._token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token

    def search(self, query: str, num_results: int) -> list[Passage]:
        """The passages for ``query``, best first.

        Raises:
            RetrievalError: see there.
        """
        request = {"queries": [query], "topk": num_results, "return_scores": True}
        try:
            status, body = self._post(json.dumps(request).encode())
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError):
                raise self._error(f"did not answer within {self._deadline_s:g} s") from error
            raise self._error(f"gave no answer ({type(error).__name__}: {error})") from error
        if status != 200:
            raise self._error(f"answered status {status}: {body[:200].decode(errors='replace')!r}")
        try:
            (found,) = json.loads(body)["result"]
            return [_passage(entry) for entry in found][:num_results]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            start = body[:200].decode(errors="replace")
            raise self._error(f"answered something else than passages: {start!r}") from error

    def _post(self, body: bytes) -> tuple[int, bytes]:
        # One connection a request: on one machine it costs a fraction of a millisecond, and a
        # thousand idle environments hold nothing open. No proxy stands between, whatever is set.
        ends_s = time.monotonic() + self._deadline_s
        kind = http.client.HTTPSConnection if self._is_https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._deadline_s)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request("POST", self._path, body, headers)
            _allow_until(connection.sock, ends_s)
            response = connection.getresponse()
            chunks, size = [], 0
            while chunk := response.read1(_CHUNK_BYTES):
                chunks.append(chunk)
                size += len(chunk)
                if size > _MAX_ANSWER_BYTES:
                    raise http.client.HTTPException(f"more than {_MAX_ANSWER_BYTES} bytes")
                # A server that sends a byte now and then keeps every single wait short.
                _allow_until(connection.sock, ends_s)
            return response.status, b"".join(chunks)
        finally:
            connection.close()

    def _error(self, what: str) -> RetrievalError:
        return RetrievalError(
            f"the retrieval server {self._url} {what}. Start one with `megatron-agent "
            f"retrieval serve`, or correct env.options.url or {URL_VARIABLE}; a slow one may "
            f"need a larger env.options.deadline_s."
        )


def is_server_url(url: str) -> bool:
    """Whether ``url`` can be the address of a server.

    Example:
        >>> is_server_url("https://search.example:8000/retrieve"), is_server_url("localhost:8000")
        (True, False)
    """
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port that is no number
        return False


def _allow_until(connection_socket: socket.socket | None, ends_s: float) -> None:
    remaining_s = ends_s - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    if connection_socket is not None:  # http.client lets go of it after the last chunk
        connection_socket.settimeout(remaining_s)


def _passage(entry: Mapping[str, Any]) -> Passage:
    document = entry.get("document", entry)
    if isinstance(document, str):
        return passage_from_contents(document)
    if "contents" in document:
        return passage_from_contents(document["contents"])
    return Passage(title=one_line(document["title"]), text=one_line(document["text"]))
