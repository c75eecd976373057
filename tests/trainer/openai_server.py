"""A server with OpenAI's API on a real socket, which misbehaves as a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Say = Callable[[dict[str, Any]], str]
"""From the body of a request to the text of its answer."""


@dataclass
class FakeAPI:
    """One server; ``faults`` are what happens to the next requests, first to last."""

    say: Say
    key: str = ""
    """Requests without it are refused."""
    models: tuple[str, ...] = ("m",)
    faults: list[str] = field(default_factory=list)
    delay_s: float = 0.0
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: int = 0
    most_at_once: int = 0

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.delay_s)
            return await self._answer(request, body)
        finally:
            self.at_once -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            said = request.headers.get("Authorization", "none")
            return web.json_response({"error": {"message": f"wrong key: {said}"}}, status=401)
        if body["model"] not in self.models:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        fault = self.faults.pop(0) if self.faults else ""
        if fault.isdecimal():
            headers = {"Retry-After": "0"} if fault == "429" else {}
            return web.Response(status=int(fault), text="busy", headers=headers)
        match fault:
            case "hang":
                await self.over.wait()
            case "later":
                return web.Response(status=429, text="busy", headers={"Retry-After": "30"})
            case "key":
                return web.json_response({"error": {"message": f"not for {request.headers.get('Authorization')}"}})
            case "redirect":
                raise web.HTTPTemporaryRedirect("/elsewhere")
            case "reset":
                assert request.transport is not None
                request.transport.abort()
        if "prompt" in body:
            return await _send(request, fault, _completion(body, fault))
        return await _send(request, fault, _chat(self.say(body), fault))


def _chat(text: str, fault: str) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    choice: dict[str, Any] = {"message": message, "finish_reason": "stop"}
    match fault:
        case "no choices":
            return {"error": {"message": "provider error"}}
        case "list":
            return [choice]
        case "number":
            message["content"] = 7
        case "null":
            message["content"] = None
        case "parts":
            message["content"] = [{"type": "text", "text": text[:2]}, {"type": "text", "text": text[2:]}]
        case "refusal":
            message.update(content=None, refusal="I won't")
        case "thoughts":
            message.update(content=None, reasoning_content="hm")
            choice["finish_reason"] = "length"
        case "tool":
            message.update(content=None, tool_calls=[{"id": "1"}])
            choice["finish_reason"] = "tool_calls"
        case "no finish":
            del choice["finish_reason"]
        case "length" | "content_filter" | "abort":
            choice["finish_reason"] = fault
    return {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}


def _completion(body: dict[str, Any], fault: str) -> Any:
    ids = [7] * (body["max_tokens"] - 1) + body["stop_token_ids"][:1]
    choice = {
        "text": "x",
        "token_ids": ids,
        "finish_reason": "stop" if body["stop_token_ids"] else "length",
        "logprobs": {"token_logprobs": [-0.25] * len(ids)},
    }
    match fault:
        case "no ids":
            del choice["token_ids"]
        case "text ids":
            choice["token_ids"] = ["7"] * len(ids)
        case "short":
            choice["logprobs"] = {"token_logprobs": [-0.25]}
        case "no number":
            choice["logprobs"] = {"token_logprobs": [float("nan"), *[-0.25] * (len(ids) - 1)]}
        case "long":
            choice["token_ids"], choice["logprobs"] = [7] * 99, {"token_logprobs": [-0.25] * 99}
        case "abort":
            choice["finish_reason"] = fault
    return {"choices": [choice]}


async def _send(request: web.Request, fault: str, answer: Any) -> web.StreamResponse:
    text = {"text": b"<html>busy</html>", "empty": b"", "deep": b"[" * 100_000}.get(fault, json.dumps(answer).encode())
    if fault == "half":
        response = web.StreamResponse(headers={"Content-Length": str(len(text))})
        await response.prepare(request)
        await response.write(text[: len(text) // 2])
        assert request.transport is not None
        request.transport.close()
        return response
    if fault == "stream":
        return web.Response(body=b"data: " + text + b"\n\ndata: [DONE]\n\n", content_type="text/event-stream")
    return web.Response(body=text, content_type="text/html" if fault == "text" else "application/json")


@contextlib.contextmanager
def serve(say: Say | str = "Right", **settings: Any) -> Iterator[FakeAPI]:
    """A server for the time of the block; a text is what it always says."""
    api = FakeAPI((lambda body: say) if isinstance(say, str) else say, **settings)
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def run() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", api.list_models)
        app.router.add_post("/v1/chat/completions", api.answer)
        app.router.add_post("/v1/completions", api.answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        api.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        ready.set()
        await api.over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(10)
    try:
        yield api
    finally:
        loop.call_soon_threadsafe(api.over.set)
        thread.join()
        loop.close()
