"""A server in the wire format of OpenEnv 0.10 (``/schema``, ``/ws``; messages reset, step, close): find a number."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect


class Guess(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: dict[str, Any] = Field(default_factory=dict)
    number: int = Field(description="the number you think of", ge=0, examples=[3])


class Say(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: dict[str, Any] = Field(default_factory=dict)
    text: str


class Move(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: dict[str, Any] = Field(default_factory=dict)
    number: int
    sure: bool


class Direction(enum.Enum):
    LEFT = "left"
    RIGHT = "turn right"


class Speed(enum.Enum):
    SLOW = 1
    FAST = 2


class Gear(enum.Enum):
    FIRST = 1
    NAMED = "1"


class Turn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: dict[str, Any] = Field(default_factory=dict)
    direction: Direction = Field(description="where to")
    speed: Speed | None = None
    gear: Gear | None = None
    number: int = 50


class Game:
    """Numbers below ``below`` (a setting of reset); 1 for the number, after which the episode is done."""

    def __init__(self, action: type[BaseModel]) -> None:
        self.action, self.secret = action, -1

    def reset(self, seed: int | None = None, below: int = 10) -> dict[str, Any]:
        self.secret = random.Random(seed).randrange(below)
        return {"observation": {"text": f"A number below {below}."}, "reward": None, "done": False}

    def step(self, data: dict[str, Any]) -> dict[str, Any]:
        action = self.action.model_validate(data)
        guess = getattr(action, "number", None)
        if guess is None:
            guess = int(action.text)  # what is not a number fails in the environment
        if guess == 999:
            time.sleep(4)
        right = guess == self.secret
        told = {"metadata": {}, "text": "Right." if right else "Higher." if guess < self.secret else "Lower."}
        return {"observation": told, "reward": 1.0 if right else 0.0, "done": right}


def app(action: type[BaseModel], sessions: int) -> Starlette:
    taken = 0

    async def schema(request: Request) -> JSONResponse:
        return JSONResponse({"action": action.model_json_schema(), "observation": {}, "state": {}})

    async def play(socket: WebSocket) -> None:
        nonlocal taken
        await socket.accept()
        if taken >= sessions:
            await socket.send_json(error("CAPACITY_REACHED", f"all {sessions} sessions are taken"))
            await socket.close()
            return
        taken += 1
        game = Game(action)
        try:
            while True:
                message = json.loads(await socket.receive_text())
                if message["type"] == "close":
                    break
                call = {"reset": lambda data: game.reset(**data), "step": game.step}[message["type"]]
                try:
                    data = await asyncio.to_thread(call, message["data"])
                    await socket.send_json({"type": "observation", "data": data})
                except ValidationError as wrong:
                    why = error("VALIDATION_ERROR", "Invalid message")
                    why["data"]["errors"] = json.loads(wrong.json())
                    await socket.send_json(why)
                except Exception as wrong:
                    await socket.send_json(error("EXECUTION_ERROR", str(wrong)))
        except WebSocketDisconnect:
            pass
        finally:
            taken -= 1

    return Starlette(routes=[Route("/schema", schema), WebSocketRoute("/ws", play)])


def error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}


@contextlib.contextmanager
def serving(action: type[BaseModel], sessions: int = 64) -> Iterator[str]:
    """The address of a server, which runs meanwhile."""
    settings = uvicorn.Config(
        app(action, sessions), port=0, log_level="critical", ws="websockets-sansio", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
