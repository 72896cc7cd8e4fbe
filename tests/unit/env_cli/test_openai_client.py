"""Chat completions against a small server on this machine."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from envs.registry import load_env
from megatron_agent import cli
from megatron_agent.env_cli.agents import ModelAgent
from megatron_agent.env_cli.evaluate import EvalSettings, play_tasks
from megatron_agent.env_cli.openai_client import ChatServer
from megatron_agent.errors import ConfigError, GenerationError
from megatron_agent.tasks import draw_tasks

pytestmark = pytest.mark.unit

KEY = "sk-a-secret-of-the-user"


class StandIn(ThreadingHTTPServer):
    """Answers with what ``answers`` says, in order; the last one stays."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, Any]] = []
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        answers = self.server.answers
        status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def says(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


@pytest.fixture
def server() -> Iterator[StandIn]:
    stand_in = StandIn()
    thread = threading.Thread(target=stand_in.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield stand_in
    stand_in.shutdown()
    stand_in.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    # A proxy of the machine must not stand between us and ourselves.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


def client(server: StandIn, **settings: Any) -> ChatServer:
    settings = {"patience_s": (0.0, 0.0), "timeout_s": 10.0, **settings}
    return ChatServer.parse(f"{server.base_url}:org/model:7b", **settings)


def test_a_prompt_is_sent_as_one_user_message(server: StandIn):
    server.answers = [(200, says("<action>up</action>"))]
    answer = client(server, temperature=0.5, max_tokens=9).complete("Where to?", seed=3)
    assert answer == "<action>up</action>"
    ((path, headers, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "org/model:7b",
        "messages": [{"role": "user", "content": "Where to?"}],
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 3,
    }
    assert "Authorization" not in headers


def test_the_key_goes_to_the_server_and_nowhere_else(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.answers = [(200, says("ok")), (401, f"bad key {KEY}".encode())]
    chat = client(server)
    chat.complete("a", seed=0)
    assert server.requests[0][1]["Authorization"] == f"Bearer {KEY}"
    with pytest.raises(GenerationError, match=r"answered 401: bad key \*\*\*") as error:
        chat.complete("b", seed=0)
    assert KEY not in str(error.value) + repr(chat) + caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"error": f"Bearer {KEY}"}),
        (200, {"error": "x" * 180 + KEY}),  # half a key would be cut off the message
        (400, b"x" * 290 + KEY.encode()),
    ],
)
def test_a_key_in_an_answer_is_not_shown(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any]
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.answers = [answer]
    with pytest.raises(GenerationError) as error:
        client(server).complete("a", seed=0)
    assert KEY[:4] not in str(error.value)
    server.answers = [(200, says(f"<action>{KEY}</action>"))]
    assert client(server).complete("a", seed=0) == "<action>***</action>"


def test_a_key_from_a_file_may_end_in_a_line_end(server: StandIn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    server.answers = [(200, says("ok"))]
    client(server).complete("a", seed=0)
    assert server.requests[0][1]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-one two", '"sk-one"', "sk-ö", "sk\\one"])
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigError, match=r"\$OPENAI_API_KEY must be letters, digits") as error:
        ChatServer.parse("https://api.example.com/v1:model")
    assert "sk" not in str(error.value)


@pytest.mark.parametrize(
    "address",
    [
        "https://user:pw@example.com/v1:m",
        "https://user:pw@example.com:m",
        "https://user:p/w@example.com/v1:m",
        "https://pw@example.com/v1:m",
        "https://example.com/pw@/v1:m",
    ],
)
def test_an_address_with_a_password_is_refused_and_not_shown(address: str):
    with pytest.raises(ConfigError, match="an address without a user name or password") as error:
        ChatServer.parse(address)
    assert "pw" not in str(error.value)


def test_a_model_may_have_an_at_sign_in_its_name():
    chat = ChatServer.parse("https://example.com/v1:@cf/org/model@2")
    assert (chat.base_url, chat.model) == ("https://example.com/v1", "@cf/org/model@2")


def test_an_address_may_be_a_number_in_brackets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    chat = ChatServer.parse("http://[::1]:1/v1:m", patience_s=())
    assert chat.base_url == "http://[::1]:1/v1"
    with pytest.raises(GenerationError, match="cannot be reached"):
        chat.complete("a", seed=0)


def test_an_answer_that_breaks_off_is_named(server: StandIn, monkeypatch: pytest.MonkeyPatch):
    server.answers = [(200, b"[" * 100_000)]
    with pytest.raises(GenerationError, match="did not answer in JSON"):
        client(server).complete("a", seed=0)
    monkeypatch.setattr(Handler, "protocol_version", "")  # no status line
    with pytest.raises(GenerationError, match="cannot be reached"):
        client(server).complete("a", seed=0)


def test_a_redirect_is_not_followed(server: StandIn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.answers = [(302, b"")]
    with pytest.raises(GenerationError, match="answered 302"):
        client(server).complete("a", seed=0)


def test_a_key_does_not_travel_in_the_clear(monkeypatch: pytest.MonkeyPatch):
    ChatServer.parse("http://gpu-7:30000/v1:model")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ConfigError, match=r"https address while \$OPENAI_API_KEY is set") as error:
        ChatServer.parse("http://gpu-7:30000/v1:model")
    assert KEY not in str(error.value)
    assert ChatServer.parse("https://api.example.com/v1:model").model == "model"
    assert ChatServer.parse("http://localhost:1/v1:model").base_url == "http://localhost:1/v1"


def test_a_busy_server_is_asked_again(server: StandIn):
    server.answers = [(429, b"later"), (503, b"soon"), (200, says("now"))]
    assert client(server).complete("a", seed=0) == "now"
    assert len(server.requests) == 3


def test_a_server_that_stays_busy_is_named(server: StandIn):
    server.answers = [(503, b"full")]
    with pytest.raises(GenerationError, match=r"/v1 answered 503: full \(3 tries\)"):
        client(server).complete("a", seed=0)


def test_a_server_that_is_not_there_is_named():
    chat = ChatServer(base_url="http://127.0.0.1:9/v1", model="m", patience_s=(0.0,))
    with pytest.raises(GenerationError, match=r"127.0.0.1:9/v1 cannot be reached: .*\(2 tries\)"):
        chat.complete("a", seed=0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>", "did not answer in JSON"),
        ({"error": "no"}, r"has no choices\[0\].message.content: {'error': 'no'}"),
        ({"choices": []}, r"has no choices\[0\]"),
        ([], r"has no choices\[0\]"),
    ],
)
def test_an_answer_of_another_shape_is_an_error(server: StandIn, answer: Any, message: str):
    server.answers = [(200, answer)]
    with pytest.raises(GenerationError, match=message):
        client(server).complete("a", seed=0)


def test_an_empty_answer_is_an_empty_response(server: StandIn):
    server.answers = [(200, says(None))]  # type: ignore[arg-type]
    assert client(server).complete("a", seed=0) == ""


def test_a_broken_text_can_be_sent(server: StandIn):
    server.answers = [(200, says("ok"))]
    assert client(server).complete("\ud800", seed=0) == "ok"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://host",
        "ftp://host:m",
        "host:80/v1:m",
        "http://:m",
        "http://[::g]/v1:m",
        "http://[1:2:3]/v1:m",
        "http://host:99999/v1:m",
        "http://a..b/v1:m",
        "http://host/ü:m",
    ],
)
def test_an_address_of_another_form_is_named(address: str):
    with pytest.raises(ConfigError, match=r"--policy must be openai:BASE_URL:MODEL, got 'openai:"):
        ChatServer.parse(address)


def test_a_served_model_plays_by_the_command_line(
    server: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.answers = [(200, says("<think>down we go</think><action>down</action>"))]
    command = ["env", "eval", "frozenlake", "--policy", f"openai:{server.base_url}:m"]
    assert cli.main([*command, "--episodes", "6", "--max-steps", "4", "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["num_episodes"] == 6
    assert summary["valid_action_rate"] == 1.0
    assert {action for episode in summary["episodes"] for action in episode["actions"]} == {"down"}
    assert all("Cross the frozen lake" in body["messages"][0]["content"]
               for _, _, body in server.requests[1:])  # fmt: skip
    assert KEY not in printed.out + printed.err


def test_failures_of_the_server_are_counted_not_raised(
    server: StandIn, capsys: pytest.CaptureFixture[str]
):
    server.answers = [(200, says("yes")), (400, b"no such model")]
    command = ["env", "eval", "frozenlake", "--policy", f"openai:{server.base_url}:m"]
    assert cli.main([*command, "--episodes", "2"]) == 1  # not one was played
    out = capsys.readouterr().out
    assert "failed   2 x generation_error: " in out
    assert "answered 400: no such model" in out


def test_a_server_that_cannot_answer_is_told_once_and_nothing_is_played(
    server: StandIn, capsys: pytest.CaptureFixture[str]
):
    server.answers = [(400, b"no such model")]
    command = ["env", "eval", "frozenlake", "--policy", f"openai:{server.base_url}:m"]
    assert cli.main([*command, "--episodes", "2"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"megatron-agent: {server.base_url} answered 400: no such model\n"


def test_as_many_requests_are_under_way_as_are_asked_for(server: StandIn):
    num_parallel = (os.cpu_count() or 1) + 8  # asyncio's own threads are fewer
    meeting = threading.Barrier(num_parallel, timeout=20)

    class Meeting(ChatServer):
        def complete(self, prompt: str, *, seed: int) -> str:
            meeting.wait()
            return "<action>down</action>"

    agent = ModelAgent(Meeting(base_url=server.base_url, model="m"))
    settings = EvalSettings(max_steps=1, num_parallel=num_parallel)
    tasks = draw_tasks("frozenlake", "eval", num_parallel)
    episodes = play_tasks(load_env("frozenlake"), agent, tasks, settings)
    assert {episode.failure for episode in episodes} == {""}
