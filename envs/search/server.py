"""A retrieval server: searches passages over HTTP, in the request format of Search-R1.

    megatron-agent retrieval serve --corpus wiki.jsonl --port 8000

- ``POST /retrieve`` with ``{"queries": [...], "topk": 3, "return_scores": true}`` (or one
  ``"query"``) answers ``{"result": [[{"document": {"contents": ...}, "score": ...}, ...]]}``.
- ``GET /health`` answers ``{"status": "ok", "num_passages": ...}``.

It listens on the loopback address. On any other it needs a token, in the environment variable
``MEGATRON_AGENT_RETRIEVAL_TOKEN``, which requests then carry (``Authorization: Bearer ...``).
"""

from __future__ import annotations

import argparse
import hmac
import ipaddress
import json
import logging
import os
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from envs.data import EnvDataError
from envs.printable import one_line
from envs.search.client import TOKEN_VARIABLE
from envs.search.passages import Bm25Passages, PassageIndex, read_passages
from envs.search.questions import CORPUS_FILES, find_file

_LOG = logging.getLogger(__name__)
_MAX_REQUEST_BYTES = 1 << 20
_MAX_QUERIES = 1024
_MAX_TOPK = 100
_DEFAULT_TOPK = 3
_IDLE_TIMEOUT_S = 60.0


class RetrievalServer(ThreadingHTTPServer):
    """Serves one index until `shutdown`.

    Args:
        index: what is searched.
        host: address to listen on.
        port: 0 for any free one; `url` tells which it became.
        token: what requests must carry; empty for none.

    Raises:
        ValueError: an outside address without a token.
        OSError: the port is taken.

    Example::

        with RetrievalServer(index, port=0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            print(server.url)
    """

    daemon_threads = True
    request_queue_size = 512  # a group of environments starts its first search at one moment

    def __init__(
        self, index: PassageIndex, *, host: str = "127.0.0.1", port: int = 8000, token: str = ""
    ) -> None:
        if not token and not is_loopback(host):
            raise ValueError(
                f"a retrieval server on the outside address {host!r} must have a token. Set "
                f"{TOKEN_VARIABLE}, or listen on 127.0.0.1."
            )
        self.index = index
        self.token = token
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or was cut off at its own deadline, is nothing to report."""
        error = sys.exception()
        level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
        _LOG.log(level, "connection of %s broke off", client_address, exc_info=error)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"


class _Refusal(Exception):
    """A request that is not answered; becomes a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: RetrievalServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or an answer may wait for the other side's acknowledgement
    timeout = _IDLE_TIMEOUT_S  # or clients that went away would keep their threads

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {"status": "ok", "num_passages": len(self.server.index)})
        else:
            self._answer(404, {"error": "there are GET /health and POST /retrieve"})

    def do_POST(self) -> None:
        try:
            answer = self._retrieve()
        except _Refusal as refusal:
            self.close_connection = True  # its body may be unread
            self._answer(refusal.status, {"error": str(refusal)})
        except OSError:  # of the connection: `handle_error` knows what to do
            raise
        except Exception as error:  # a query that breaks the index must not look like a lost server
            _LOG.exception("the search failed")
            self._answer(500, {"error": f"the search failed: {type(error).__name__}: {error}"})
        else:
            self._answer(200, answer)

    def log_message(self, format: str, *args: Any) -> None:
        _LOG.debug("%s %s", self.address_string(), format % args)

    def _retrieve(self) -> dict[str, Any]:
        if self.path != "/retrieve":
            raise _Refusal(404, "there are GET /health and POST /retrieve")
        if not self._may():
            raise _Refusal(401, "the request must carry the server's token (Authorization: Bearer)")
        queries, topk, with_scores = _read_request(self._body())
        found = [self.server.index.search(query, topk) for query in queries]
        documents = [
            [
                {"document": {"contents": passage.contents}, "score": score}
                if with_scores
                else {"contents": passage.contents}
                for passage, score in passages
            ]
            for passages in found
        ]
        return {"result": documents}

    def _may(self) -> bool:
        given = self.headers.get("Authorization", "")
        return not self.server.token or hmac.compare_digest(
            given.encode(), f"Bearer {self.server.token}".encode()
        )

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refusal(411, "the request must have a Content-Length")
        if int(length) > _MAX_REQUEST_BYTES:
            raise _Refusal(413, f"the request must have at most {_MAX_REQUEST_BYTES} bytes")
        return self.rfile.read(int(length))

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _read_request(body: bytes) -> tuple[list[str], int, bool]:
    """Queries, number of passages for each, and whether scores are wanted."""
    try:
        request = json.loads(body)
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise _Refusal(400, "the request must be a JSON object")
    queries = request.get("queries", request.get("query"))
    if isinstance(queries, str):
        queries = [queries]
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _Refusal(400, "queries must be a list of texts")
    if not 1 <= len(queries) <= _MAX_QUERIES:
        raise _Refusal(400, f"queries must be 1 to {_MAX_QUERIES}, got {len(queries)}")
    topk = request.get("topk")
    topk = _DEFAULT_TOPK if topk is None else topk
    if not isinstance(topk, int) or isinstance(topk, bool) or not 1 <= topk <= _MAX_TOPK:
        raise _Refusal(400, f"topk must be an integer from 1 to {_MAX_TOPK}, got {topk!r}")
    # Search-R1's own server answers without scores unless they are asked for; the environments that
    # use its format read both.
    return list(map(one_line, queries)), topk, bool(request.get("return_scores", True))


def is_loopback(host: str) -> bool:
    """Whether ``host`` can be reached from this machine only.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
        (True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--corpus",
        default="",
        metavar="FILE",
        help="passages, .json or .jsonl (default: HotpotQA's, from MEGATRON_AGENT_DATA)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="another one needs a token")
    parser.add_argument("--port", type=int, default=8000, help="0 for any free one")
    parser.add_argument(
        "--encoder",
        default="",
        metavar="MODEL",
        help="folder of a sentence encoder: search by meaning (extra search-dense), not by words",
    )
    parser.add_argument(
        "--faiss-index", default="", metavar="FILE", help="made earlier from this corpus"
    )
    parser.add_argument("--query-prefix", default="", help="e.g. 'query: ' for E5")
    parser.add_argument("--passage-prefix", default="", help="e.g. 'passage: ' for E5")


def _serve(options: argparse.Namespace) -> int:
    try:
        # A path as the shell knows it comes first; a bare name may also be one of the data folder.
        given = options.corpus
        path = (
            Path(given) if given and Path(given).is_file() else find_file(given, CORPUS_FILES, "")
        )
        index = _build_index(path, options)
        token = os.environ.get(TOKEN_VARIABLE, "")
        server = RetrievalServer(index, host=options.host, port=options.port, token=token)
    except (EnvDataError, ValueError, ImportError, OSError) as error:
        sys.stderr.write(f"retrieval server: {error}\n")
        return 2
    with server:
        sys.stdout.write(f"serving {len(index)} passages of {path} on {server.url}\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.stdout.write("stopped\n")
    return 0


def main(argv: Sequence[str] | None = None, prog: str = "python -m envs.search.server") -> int:
    """``megatron-agent retrieval serve``: serve until interrupted.

    Returns:
        Exit code: 0, or 2 for a mistake in the options.
    """
    parser = argparse.ArgumentParser(prog=prog, description="Search passages over HTTP.")
    _add_arguments(parser)
    return _serve(parser.parse_args(argv))


def _build_index(path: Path, options: argparse.Namespace) -> PassageIndex:
    passages = read_passages(path)
    if not options.encoder:
        return Bm25Passages(passages)
    from envs.search.dense import DensePassages, SentenceEncoder

    encoder = SentenceEncoder(
        options.encoder,
        query_prefix=options.query_prefix,
        passage_prefix=options.passage_prefix,
    )
    return DensePassages(passages, encoder, index_file=options.faiss_index)


if __name__ == "__main__":
    raise SystemExit(main())
