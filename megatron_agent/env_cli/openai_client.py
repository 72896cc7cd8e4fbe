"""Chat completions from any OpenAI-compatible server (SGLang included), with the standard library.

The key is read from the environment (``OPENAI_API_KEY``), goes to the named server alone, and never
into a message, a log or a file: redirects are not followed, it is not sent in the clear to another
machine, and a server that repeats it is not quoted to the letter.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from megatron_agent.errors import ConfigError, GenerationError

KEY_VARIABLE = "OPENAI_API_KEY"
_ADDRESS = re.compile(
    r"(?P<base>https?://(?:\[[\da-fA-F:.]+\]|[^/:\s@\[\]]+)(?::\d+)?(?P<path>/[^:\s@]*)?)"
    r":(?P<model>\S+)"
)
_NOT_IN_KEYS = frozenset(" \"'\\")
"""All but the first are escaped where an answer is quoted: the key would not be found in it."""
_PATIENCE_S = (1.0, 4.0, 15.0)
"""Pauses before a busy server (429, 5xx, no connection) is asked again."""
_MOST_RESPONSE_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatServer:
    """One model on one server.

    Example:
        >>> ChatServer.parse("http://127.0.0.1:30000/v1:Qwen/Qwen2.5-7B-Instruct").model
        'Qwen/Qwen2.5-7B-Instruct'
    """

    base_url: str
    model: str
    temperature: float = 1.0
    max_tokens: int = 512
    timeout_s: float = 300.0
    patience_s: tuple[float, ...] = _PATIENCE_S

    @classmethod
    def parse(cls, address: str, **settings: Any) -> ChatServer:
        """Read ``BASE_URL:MODEL``.

        Raises:
            ConfigError: not of that form, the key would travel in the clear, or it cannot be one.
        """
        match = _ADDRESS.fullmatch(address)
        # After a path it is part of the model's name; elsewhere it may follow a password.
        if "@" in address and not (match and match["path"]):
            raise ConfigError(
                "--policy",
                "must have an address without a user name or password",
                "one with '@'",
                f"Leave them out, and put the key into ${KEY_VARIABLE}.",
            )
        if match is None or not _is_url(match["base"]):
            raise ConfigError(
                "--policy",
                "must be openai:BASE_URL:MODEL",
                f"openai:{address}",
                "Write for example openai:http://127.0.0.1:30000/v1:my-model.",
            )
        server = cls(base_url=match["base"].rstrip("/"), model=match["model"], **settings)
        if _key() and not server._is_private:
            raise ConfigError(
                "--policy",
                f"must have an https address while ${KEY_VARIABLE} is set",
                f"openai:{address}",
                f"Use https, or unset {KEY_VARIABLE} for a server that needs no key.",
            )
        return server

    @property
    def _is_private(self) -> bool:
        """Whether nobody on the way can read what is sent."""
        parts = urlsplit(self.base_url)
        return parts.scheme == "https" or _is_this_machine(parts.hostname or "")

    def complete(self, prompt: str, *, seed: int) -> str:
        """The model's answer to one user message; blocks.

        Raises:
            GenerationError: no usable answer, after several tries where that may help.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": seed,
        }
        for pause_s in (*self.patience_s, None):
            try:
                return _text_of(self._post(body))
            except _BusyError as error:
                if pause_s is None:
                    raise GenerationError(f"{error} ({len(self.patience_s) + 1} tries)") from None
                time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _post(self, body: Mapping[str, Any]) -> Any:
        # Surrogates, which a broken environment may put into a text, are not UTF-8.
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.base_url}/chat/completions",
            data=data,
            headers={"Content-Type": "application/json", **self._authorization()},
        )
        handlers: list[Any] = [_NoRedirect()]
        if _is_this_machine(urlsplit(self.base_url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=self.timeout_s) as response:
                answer = response.read(_MOST_RESPONSE_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(_MOST_RESPONSE_BYTES).decode("utf-8", "replace").strip()
            message = f"{self.base_url} answered {error.code}: {_without_key(said)[:300]}"
            if error.code == 429 or error.code >= 500:
                raise _BusyError(message) from None
            raise GenerationError(message) from None
        except (OSError, http.client.HTTPException) as error:
            reason = _without_key(str(error)) or type(error).__name__
            raise _BusyError(f"{self.base_url} cannot be reached: {reason}") from None
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise GenerationError(f"{self.base_url} did not answer in JSON: {error}") from None

    def _authorization(self) -> dict[str, str]:
        key = _key()
        return {"Authorization": f"Bearer {key}"} if key else {}


class _BusyError(Exception):
    """It may work later."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to whatever host the answer names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _text_of(answer: Any) -> str:
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        said = _without_key(str(answer))[:200]  # in this order: half a key would not be found
        raise GenerationError(f"the answer has no choices[0].message.content: {said}") from None
    return _without_key(text) if isinstance(text, str) else ""


def _is_url(base: str) -> bool:
    try:
        parts = urlsplit(base)
        (parts.hostname or "").encode("idna")
        return parts.path.isascii() and parts.port != 0  # to ask for the port checks it
    except ValueError:
        return False


def _key() -> str:
    """The key of the environment, or nothing; a file that it was read from adds line ends.

    Raises:
        ConfigError: it has characters that no key has. The message does not show them.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()) or _NOT_IN_KEYS & set(key):
        raise ConfigError(
            f"${KEY_VARIABLE}",
            "must be letters, digits and signs without spaces, line ends, quotes or backslashes",
            "a value with another character",
            "Set it to the key alone.",
        )
    return key


def _without_key(text: str) -> str:
    """A server may repeat the key in what it says."""
    key = _key()
    return text.replace(key, "***") if key else text
