"""The retrieval server and its client, on a free port of this machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from envs.checker import check_env
from envs.registry import load_env
from envs.search import server as server_module
from envs.search.client import RetrievalClient, RetrievalError
from envs.search.env import SearchEnv
from envs.search.passages import Bm25Passages, Passage
from envs.search.server import RetrievalServer, is_loopback, main

pytestmark = pytest.mark.unit


def ask(
    server: RetrievalServer,
    body: Any,
    *,
    path: str = "/retrieve",
    method: str = "POST",
    **headers: str,
) -> tuple[int, Any]:
    host, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(host), port, timeout=5)
    with contextlib.closing(connection):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_search_r1s_request_gets_search_r1s_answer(server: RetrievalServer):
    status, answer = ask(server, {"queries": ["lune", "bread"], "topk": 1, "return_scores": True})
    assert status == 200
    (first,), (second,) = answer["result"]
    assert first["document"]["contents"].startswith('"River Lune"\nThe Lune flows')
    assert second["document"]["contents"] == '"Bakery"\nA place for bread.'
    assert first["score"] > 0


def test_one_query_and_no_scores_are_understood(server: RetrievalServer):
    _, answer = ask(server, {"query": "bread", "topk": 2, "return_scores": False})
    assert answer == {"result": [[{"contents": '"Bakery"\nA place for bread.'}]]}
    _, answer = ask(server, {"query": "sea"})
    assert len(answer["result"][0]) == 2


def test_it_says_that_it_is_well(server: RetrievalServer):
    assert ask(server, b"", method="GET", path="/health") == (
        200,
        {"status": "ok", "num_passages": 4},
    )
    assert ask(server, b"", method="GET", path="/")[0] == 404


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "must be a JSON object"),
        ([], 400, "must be a JSON object"),
        ({}, 400, "queries must be a list of texts"),
        ({"queries": [1]}, 400, "queries must be a list of texts"),
        ({"queries": []}, 400, "queries must be 1 to 1024, got 0"),
        ({"queries": ["x"] * 1025}, 400, "got 1025"),
        ({"query": "x", "topk": 0}, 400, "topk must be an integer from 1 to 100, got 0"),
        ({"query": "x", "topk": True}, 400, "got True"),
    ],
)
def test_a_bad_request_is_told_why(server: RetrievalServer, body: Any, status: int, message: str):
    found_status, answer = ask(server, body)
    assert (found_status, message in answer["error"]) == (status, True), answer


@pytest.mark.parametrize(
    ("header", "status"), [(b"", b"411"), (b"Content-Length: 1048577\r\n", b"413")]
)
def test_a_request_of_unknown_or_too_great_length_is_not_read(
    server: RetrievalServer, header: bytes, status: bytes
):
    host, port = server.server_address[:2]
    with socket.create_connection((str(host), port), timeout=5) as raw:
        raw.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 " + status)


def test_other_paths_are_refused(server: RetrievalServer):
    assert ask(server, {"query": "x"}, path="/other")[0] == 404


def test_a_token_is_asked_for(index: Bm25Passages):
    for server in run(RetrievalServer(index, port=0, token="secret")):
        assert ask(server, {"query": "bread"})[0] == 401
        assert ask(server, {"query": "bread"}, Authorization="Bearer other")[0] == 401
        assert ask(server, {"query": "bread"}, Authorization="Bearer secret")[0] == 200
        client = RetrievalClient(server.url, deadline_s=5, token="secret")
        assert [passage.title for passage in client.search("bread", 3)] == ["Bakery"]
        with pytest.raises(RetrievalError, match=r"answered status 401: .*must carry the server"):
            RetrievalClient(server.url, deadline_s=5, token="").search("bread", 3)


def run(server: RetrievalServer) -> Iterator[RetrievalServer]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_outside_address_needs_a_token(index: Bm25Passages):
    with pytest.raises(ValueError, match=r"outside address '0\.0\.0\.0' must have a token"):
        RetrievalServer(index, host="0.0.0.0", port=0)
    RetrievalServer(index, host="0.0.0.0", port=0, token="secret").server_close()
    assert [is_loopback(host) for host in ("localhost", "::1", "127.8.0.1", "10.0.0.1", "me")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_many_may_ask_at_a_time(server: RetrievalServer):
    client = RetrievalClient(server.url, deadline_s=20)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: client.search("lune", 3), range(100)))
    assert {tuple(passage.title for passage in one) for one in found} == {
        ("River Lune", "Harbour Town")
    }


def test_the_environment_plays_the_same_with_a_server(
    server: RetrievalServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    def observations(**more: Any) -> list[Any]:
        env = SearchEnv()
        seen = [env.reset(seed=0, options={**options, **more})]
        seen += [env.step(f"<search>{q}</search>").observation for q in ("lune", "zzz", "sea")]
        return seen

    local = observations()
    assert observations(url=server.url) == local
    assert observations(url=f"{server.url}/retrieve") == local
    monkeypatch.setenv("MEGATRON_AGENT_RETRIEVAL_URL", server.url)
    assert observations() == local


def test_with_a_server_the_environment_keeps_the_contract(
    server: RetrievalServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MEGATRON_AGENT_DATA", options["data_dir"])  # for the corpus
    check_env(
        load_env("search"), seeds=(0,), options={**options, "question": "", "url": server.url}
    )


def test_a_server_that_is_not_there_is_an_error_with_its_name(options: dict[str, Any]):
    with socket.socket() as taken:  # bound and not listening: nobody else gets it, nobody answers
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        env = SearchEnv()
        env.reset(seed=0, options={**options, "url": url})
        with pytest.raises(RetrievalError, match=f"{url} gave no answer .*Start one with"):
            env.step("<search>x</search>")


@pytest.mark.parametrize("drip", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_a_server_that_is_too_slow_is_given_up_at_the_deadline(drip: bytes):
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(drip)
                while not stop.wait(0.05):
                    if drip:
                        connection.sendall(b" ")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = RetrievalClient(
            f"http://127.0.0.1:{listener.getsockname()[1]}", deadline_s=0.3, token=""
        )
        started_s = time.monotonic()
        with pytest.raises(RetrievalError, match=r"did not answer within 0\.3 s"):
            client.search("x", 1)
        assert time.monotonic() - started_s < 3
        stop.set()
        thread.join()


class _Canned:
    """An index whose server answers what a test wants."""

    def __len__(self) -> int:
        return 0

    def search(self, query: str, num_results: int) -> list[tuple[Passage, float]]:
        return []


@pytest.mark.parametrize(
    ("answer", "titles"),
    [
        ({"result": [[{"document": {"id": "1", "contents": '"A"\nb'}, "score": 1.0}]]}, ["A"]),
        ({"result": [[{"contents": "A\nb"}]]}, ["A"]),
        ({"result": [[{"document": {"title": "A", "text": "b"}}]]}, ["A"]),
        ({"result": [[{"document": "A\nb", "score": 1}]]}, ["A"]),
        ({"result": [[{"contents": "A"}, {"contents": "B"}, {"contents": "C"}]]}, ["A", "B"]),
        ({"result": [[]]}, []),
        ({"result": []}, None),
        ({"results": [[]]}, None),
        ([], None),
        ({"result": [[{"document": {}}]]}, None),
    ],
)
def test_answers_of_other_servers_are_read_or_refused(
    answer: Any, titles: list[str] | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server_module._Handler, "_retrieve", lambda handler: answer)
    for server in run(RetrievalServer(_Canned(), port=0)):
        client = RetrievalClient(server.url, deadline_s=5, token="")
        if titles is None:
            with pytest.raises(RetrievalError, match="answered something else than passages"):
                client.search("x", 2)
        else:
            assert [passage.title for passage in client.search("x", 2)] == titles


class _Broken(_Canned):
    def search(self, query: str, num_results: int) -> list[tuple[Passage, float]]:
        raise ZeroDivisionError("in the index")


def test_a_search_that_fails_is_told_and_the_server_goes_on(caplog: pytest.LogCaptureFixture):
    for server in run(RetrievalServer(_Broken(), port=0)):
        client = RetrievalClient(server.url, deadline_s=5, token="")
        for _ in range(2):
            with pytest.raises(
                RetrievalError, match=r"status 500: .*ZeroDivisionError: in the inde"
            ):
                client.search("x", 1)
    assert "the search failed" in caplog.text


def test_a_client_that_goes_away_is_nothing_to_report(
    server: RetrievalServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    for error, is_reported in ((ConnectionResetError(), False), (ValueError(), True)):
        try:
            raise error
        except (OSError, ValueError):
            with caplog.at_level("INFO"):
                server.handle_error(None, ("127.0.0.1", 1))
        assert ("broke off" in caplog.text) is is_reported
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://host", "http://", "http:///retrieve", "http://host:port"]
)
def test_a_url_that_is_none_is_refused(
    options: dict[str, Any], url: str, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ValueError, match=r"option 'url' .* must be like http://127\.0\.0\.1:8000"):
        SearchEnv().reset(seed=0, options={**options, "url": url})
    monkeypatch.setenv("MEGATRON_AGENT_RETRIEVAL_URL", url)
    with pytest.raises(ValueError, match=r"must look like http://127\.0\.0\.1:8000"):
        SearchEnv().reset(seed=0, options=options)


def test_the_program_tells_what_is_wrong_with_its_options(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MEGATRON_AGENT_RETRIEVAL_TOKEN", raising=False)
    corpus = str(folder / "hotpot100_corpus.json")
    assert main(["--corpus", str(folder / "none.json")]) == 2
    assert main(["--corpus", corpus, "--host", "0.0.0.0", "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert "there is no file" in error
    assert "must have a token" in error


def test_the_program_serves_until_it_is_interrupted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def interrupt(server: RetrievalServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RetrievalServer, "serve_forever", interrupt)
    monkeypatch.setenv("MEGATRON_AGENT_DATA", str(folder))
    assert main(["--port", "0"]) == 0
    said = capsys.readouterr().out
    assert "serving 4 passages of" in said
    assert "on http://127.0.0.1:" in said
