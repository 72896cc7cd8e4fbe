"""A program that speaks OpenEnv's protocol, for tests: ``python openenv_server.py``.

It prints its address and ends when its standard input closes. The environment is a treasure hunt.
The path says which server it is; parameters of ``reset`` ask for faults.

| path | server |
|---|---|
| ``/hunt`` | an action is one of four commands |
| ``/free`` | an action is any message; what it does not know it refuses by its schema |
| ``/two`` | an action has two fields |
| ``/small`` | as ``/hunt``, for one session at a time |
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from aiohttp import WSMsgType, web

ROOMS = ("cellar", "kitchen", "hall", "library", "attic")
COMMANDS = ("go left", "go right", "take key", "open chest")
SCHEMAS: dict[str, dict[str, Any]] = {
    "hunt": {"properties": {"command": {"$ref": "#/$defs/Command"}}, "required": ["command"]},
    "free": {"properties": {"message": {"type": "string"}}, "required": ["message"]},
    "two": {"properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
}
SCHEMAS["small"] = SCHEMAS["hunt"]
MAX_SESSIONS = {"small": 1}
NUM_SESSIONS = dict.fromkeys(SCHEMAS, 0)
NUM_PONGS = dict.fromkeys(SCHEMAS, 0)


class Hunt:
    """Find the key, then open the chest with it."""

    def reset(self, seed: int = 0, start: int = 2, fault: str = "") -> dict[str, Any]:
        self.key, self.chest = random.Random(seed).sample(range(len(ROOMS)), 2)
        self.room, self.has_key, self.num_moves, self.fault = start, False, 0, fault
        return self.look(reward=None, done=fault == "done at once")

    def look(self, reward: float | None, done: bool) -> dict[str, Any]:
        key = "You carry the key." if self.has_key else ""
        here = "A key lies here." if self.room == self.key and not self.has_key else ""
        chest = "A locked chest stands here." if self.room == self.chest else ""
        text = " ".join(filter(None, [f"You are in the {ROOMS[self.room]}.", here, chest, key]))
        state = f"{self.room} {self.has_key}"
        metadata = {"moves": self.num_moves, "state": state, "won": done, "task": "Open the chest."}
        seen = {"text": text, "commands": list(COMMANDS), "metadata": metadata}
        return {"observation": seen, "reward": reward, "done": done, "metadata": metadata}

    def step(self, command: str) -> dict[str, Any]:
        self.num_moves += 1
        if command in COMMANDS[:2]:
            way = 1 if command == "go right" else -1
            self.room = min(max(self.room + way, 0), len(ROOMS) - 1)
        self.has_key = self.has_key or (command == "take key" and self.room == self.key)
        won = command == "open chest" and self.has_key and self.room == self.chest
        return self.look(float("nan") if self.fault == "nan" else float(won), won)


class Refused(Exception):
    """What the server answers instead of an observation."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.answer = {"type": "error", "data": {"message": message, "code": code}}


def act(name: str, hunt: Hunt, message: dict[str, Any]) -> dict[str, Any]:
    """The observation after a request."""
    data = message["data"]
    if message["type"] == "reset":
        if data.get("fault") == "no reset":
            raise Refused("EXECUTION_ERROR", "no maps left")
        return hunt.reset(**data)
    command = data.get("command" if name != "free" else "message")
    if command not in COMMANDS:
        raise Refused("VALIDATION_ERROR", "Invalid message")
    if hunt.fault == "crash":
        raise Refused("EXECUTION_ERROR", "division by zero")
    return hunt.step(command)


async def session(request: web.Request) -> web.WebSocketResponse:
    """One connection."""
    name = request.match_info["name"]
    socket = web.WebSocketResponse(autoping=False)  # pongs are counted in `converse`
    await socket.prepare(request)
    if NUM_SESSIONS[name] >= MAX_SESSIONS.get(name, sys.maxsize):
        await socket.send_json(Refused("CAPACITY_REACHED", "1 of 1 sessions are in use").answer)
        await socket.close()
        return socket
    NUM_SESSIONS[name] += 1
    try:
        await converse(name, socket)
    finally:
        NUM_SESSIONS[name] -= 1
    return socket


async def converse(name: str, socket: web.WebSocketResponse) -> None:
    hunt = Hunt()
    async for received in socket:
        if received.type is WSMsgType.PONG:
            NUM_PONGS[name] += 1
            continue
        if received.type is not WSMsgType.TEXT or (message := received.json())["type"] == "close":
            break
        try:
            answer = {"type": "observation", "data": act(name, hunt, message)}
        except Refused as refusal:
            answer = refusal.answer
        if message["type"] == "step" and hunt.fault == "slow":
            await asyncio.sleep(60)
        if message["type"] == "step" and hunt.fault == "hang up":
            break
        garbage = message["type"] == "step" and hunt.fault == "garbage"
        await socket.send_str("<html>" if garbage else json.dumps(answer))
        if message["type"] == "reset":
            await socket.ping()


async def schema(request: web.Request) -> web.Response:
    command = {"enum": list(COMMANDS), "type": "string"}
    metadata = {"metadata": {"type": "object"}}
    action = SCHEMAS[request.match_info["name"]]
    action = {
        **action,
        "properties": action["properties"] | metadata,
        "$defs": {"Command": command},
    }
    return web.json_response({"action": action, "observation": {}, "state": {}})


async def health(request: web.Request) -> web.Response:
    num_pongs = NUM_PONGS[request.match_info["name"]]
    return web.json_response({"status": "healthy", "num_pongs": num_pongs})


async def main() -> None:
    app = web.Application()
    app.add_routes(
        [
            web.get("/{name}/ws", session),
            web.get("/{name}/schema", schema),
            web.get("/{name}/health", health),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    sys.stdout.write(f"http://{address[0]}:{address[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
