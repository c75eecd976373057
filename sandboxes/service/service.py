"""The service: its pool, sessions and metrics, and how one request is answered."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from roll_envs.sandbox import Sandbox
from sandboxes.service.messages import Answer, BodyBudget, Refusal, encode_json, read_json, refusal_of
from sandboxes.service.metrics import PAGE_TYPE, Metrics
from sandboxes.service.pool import OVERRUN_S, Pool
from sandboxes.service.sessions import Sessions
from sandboxes.service.settings import Settings

log = logging.getLogger("roll_sandbox.requests")

Handler = Callable[[dict[str, Any]], Coroutine[Any, Any, Answer]]

# Goes into the log and into a header, so it may hold neither spaces nor line ends.
GIVEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
DRAIN_STEP_S = 0.05


class Service:
    """Started and closed by the application's lifespan; used on one event loop."""

    def __init__(self, make: Callable[[], Sandbox], settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.pool = Pool(make, settings, self.metrics)
        self.sessions = Sessions(self.pool, settings)
        self.body_budget = BodyBudget(settings.max_held_bytes)
        self.active = 0
        """Requests that have not been answered yet."""
        self._reaper: asyncio.Task[None] | None = None
        for name, text, value in (
            ("queue_length", "Requests that wait for a slot.", lambda: self.pool.waiting),
            ("running", "Slots in use.", lambda: self.pool.running),
            ("slots", "Slots in all.", lambda: self.pool.slots),
            ("workers_alive", "Workers that can be used.", lambda: self.pool.alive),
            ("sessions_open", "Open sessions.", lambda: len(self.sessions)),
            ("draining", "1 while the service finishes its work before it stops.", lambda: self.pool.draining),
        ):
            self.metrics.watch(name, text, value)

    async def start(self) -> None:
        """Make the workers."""
        await self.pool.start()
        self._reaper = asyncio.get_running_loop().create_task(self.sessions.reap())

    async def drain(self) -> bool:
        """Refuse new requests and wait at most ``drain_timeout_s`` for the others; returns whether all finished."""
        self.pool.drain()
        deadline = time.monotonic() + self.settings.drain_timeout_s
        while self.active and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_STEP_S)
        return not self.active

    async def close(self) -> None:
        """End all sessions, requests and workers."""
        if self._reaper is not None:
            self._reaper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reaper
        await self.sessions.close_all()
        await self.pool.close()

    async def answer(
        self, request: Request, route: str, handler: Handler, *, full_status: int = 429, body: bool = True
    ) -> Response:
        """Answer with ``handler``, or with the refusal that its error stands for; counted, logged, limited in time, and
        cancelled when the client disconnects. ``handler`` gets the JSON object of the body, ``{}`` without ``body``."""
        given = request.headers.get("x-request-id", "")
        name = given if GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        started = time.monotonic()
        self.active += 1
        try:
            try:
                self._admit(request)
                with self.body_budget.reserve() as hold:
                    data = await read_json(request, self.settings, hold) if body else {}
                    answer = await self._until_gone(request, handler(data))
            except Exception as error:
                answer = self._refuse(error, full_status, name)
        finally:
            self.active -= 1
        seconds = time.monotonic() - started
        self.metrics.requests.labels(route, answer.status).inc()
        self.metrics.latency.labels(route).observe(seconds)
        if answer.outcome:
            self.metrics.outcomes.labels(route, answer.outcome).inc()
        if answer.status == 499:
            self.metrics.cancelled.inc()
        log.info("%s %s %d %s %.3f s", name, route, answer.status, answer.outcome or "-", seconds)
        headers = {"X-Request-Id": name, **answer.headers}
        if answer.text is not None:
            return Response(answer.text, answer.status, headers, PAGE_TYPE)
        return Response(encode_json(answer.body), answer.status, headers, "application/json")

    def _refuse(self, error: Exception, full_status: int, name: str) -> Answer:
        refusal = refusal_of(error, full_status)
        if refusal is not None:
            return refusal.answer()
        log.error("%s failed", name, exc_info=error)
        return Refusal(500, "fault", f"an error in this service, logged as {name}").answer()

    def _admit(self, request: Request) -> None:
        if not is_allowed(request.headers.get("authorization"), self.settings.tokens):
            challenge = {"WWW-Authenticate": 'Bearer realm="roll-sandbox"'}
            message = "send Authorization: Bearer TOKEN (or a URL like http://x:TOKEN@host:port)"
            raise Refusal(401, "unauthorized", message, challenge)

    async def _until_gone(self, request: Request, answering: Coroutine[Any, Any, Answer]) -> Answer:
        """Await ``answering`` unless the client disconnects or the longest time for a request is over."""
        most_s = self.settings.max_request_s + 2 * self.settings.queue_timeout_s + OVERRUN_S
        work = asyncio.create_task(answering)
        gone = asyncio.create_task(_until_disconnect(request))
        try:
            await asyncio.wait([work, gone], timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if gone.done():
                raise Refusal(499, "gone", "the client went away")
            raise Refusal(504, "deadline", f"the request took more than {most_s:g} s", {"Retry-After": "1"})
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


async def _until_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def is_allowed(header: str | None, tokens: Sequence[str]) -> bool:
    """Whether the value of ``Authorization`` holds one of ``tokens``; without tokens every request is allowed.

    The token is the value of Bearer or the password of Basic; Basic is for clients that can only be given a URL:
    ``http://x:TOKEN@host:8080/run_code``.

    Every token is compared, in constant time, so that timing tells nothing about them.
    """
    if not tokens:
        return True
    given = _digest(_token_of(header or ""))
    matches = [hmac.compare_digest(given, _digest(token.encode())) for token in tokens]
    return any(matches)


def _digest(token: bytes) -> bytes:
    # Of equal length, so that the comparison does not tell how long a token is.
    return hashlib.sha256(token).digest()


def _token_of(header: str) -> bytes:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "replace")
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(value.strip(), validate=True)
        except ValueError:
            return b""
        return decoded.partition(b":")[2]
    return b""
