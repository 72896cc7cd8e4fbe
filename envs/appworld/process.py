"""Our side of `envs.appworld.bridge`: a process of AppWorld's Python, with deadlines."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from pathlib import Path
from typing import Any

from envs.appworld.tasks import ROOT_VARIABLE

_BRIDGE = Path(__file__).with_name("bridge.py")
_CHUNK_BYTES = 1 << 16
_CLOSE_S = 2.0


class AppWorldError(RuntimeError):
    """AppWorld's process ended, is too slow, or failed; the message has its last words."""


class WorldProcess:
    """A process that plays one task at a time.

    Args:
        python: the program that has AppWorld installed.
        root: AppWorld's root, which holds ``data``.
    """

    def __init__(self, python: str, root: Path) -> None:
        self._python = python
        # Our packages are not for that Python: not by a variable, nor (-P) by the program's place.
        ours = ("PYTHONHOME", "PYTHONPATH")
        settings = {name: value for name, value in os.environ.items() if name not in ours}
        self._process = subprocess.Popen(
            [python, "-P", "-u", str(_BRIDGE)],
            cwd=root,
            env=settings | {ROOT_VARIABLE: str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""

    def ask(self, operation: str, *, deadline_s: float, **arguments: Any) -> dict[str, Any]:
        """One request.

        Raises:
            AppWorldError: it failed; the process is gone unless it said so itself.
        """
        request = json.dumps({"do": operation, **arguments}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
            line = self._read_line(time.monotonic() + deadline_s)
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            self.kill()
            if isinstance(error, TimeoutError):
                what = f"did not answer within {deadline_s:g} s. Raise env.options.deadline_s"
            else:
                code = self._process.returncode
                what = f"ended (exit status {code}); its words are in this process's log"
            raise AppWorldError(f"appworld: {self._python} {what}.") from error
        if "error" in answer:
            raise AppWorldError(f"appworld: {operation} failed with {answer['error'].rstrip('.')}.")
        result: dict[str, Any] = answer["ok"]
        return result

    def close(self) -> None:
        """End the process; harmless when called twice."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_S)
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _read_line(self, ends_s: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, ends_s - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(self._process.stdout.fileno(), _CHUNK_BYTES)
                if not chunk:
                    self._process.wait(_CLOSE_S)
                    raise ConnectionResetError
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line
