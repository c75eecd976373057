"""The web application: the service with its pool and sessions, how one request is answered, and the routes."""

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
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route

from roll_envs.sandbox import Sandbox
from sandboxes.service.fusion import run_code, run_jupyter
from sandboxes.service.judge import judge
from sandboxes.service.messages import Answer, Bodies, Refusal, refusal_of
from sandboxes.service.native import Sessions, run_native
from sandboxes.service.pool import OVERRUN_S, Pool
from sandboxes.service.settings import Settings
from sandboxes.service.submit import submit
from sandboxes.service.wire import VERSION, dump

log = logging.getLogger("roll_sandbox.requests")

Handler = Callable[[dict[str, Any]], Coroutine[Any, Any, Answer]]

# Goes into the log and into a header, so it may hold neither spaces nor line ends.
GIVEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Service:
    """Used on one event loop, by the application, whose lifespan starts and closes the pool."""

    def __init__(self, make: Callable[[], Sandbox], settings: Settings) -> None:
        self.settings = settings
        self.registry = to = prometheus.CollectorRegistry()
        self.pool = Pool(make, settings, to)
        self.sessions = Sessions(self.pool, settings)
        self.bodies = Bodies(settings)
        self.active = 0
        """Requests that have not been answered yet."""
        prometheus.ProcessCollector(registry=to)
        opened = prometheus.Gauge("roll_sandbox_sessions_open", "Open sessions.", registry=to)
        opened.set_function(lambda: len(self.sessions))
        text = "Answers by route and HTTP status."
        self._requests = prometheus.Counter("roll_sandbox_requests", text, ("route", "status"), registry=to)
        text = "What became of programs, by route."  # Success, Failed, SandboxError, ok, error, timeout, ...
        self._outcomes = prometheus.Counter("roll_sandbox_outcomes", text, ("route", "outcome"), registry=to)
        text = "Requests whose client went away before the answer."
        self._cancelled = prometheus.Counter("roll_sandbox_cancelled", text, registry=to)
        text = "Time from the request to the answer."
        self._latency = prometheus.Histogram(
            "roll_sandbox_request_seconds", text, ("route",), buckets=EDGES_S, registry=to
        )

    async def answer(self, request: Request, route: str, handler: Handler) -> Answer:
        """Answer with ``handler``, or with the refusal that its error stands for; counted, logged, limited in time, and
        cancelled when the client disconnects. ``handler`` gets the JSON object that was posted, else ``{}``."""
        given = request.headers.get("x-request-id", "")
        name = given if GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        started = time.monotonic()
        self.active += 1
        try:
            self._admit(request)
            async with self.bodies.read(request) as data:
                answer = await self._until_gone(request, handler(data))
        except Exception as error:
            refusal = refusal_of(error, self.settings.full_status if route in FUSION else 429)
            if refusal is None:
                log.error("%s failed", name, exc_info=error)
                refusal = Refusal(500, "fault", f"an error in this service, logged as {name}")
            answer = refusal.answer()
        finally:
            self.active -= 1
        seconds = time.monotonic() - started
        self._requests.labels(route, answer.status_code).inc()
        self._latency.labels(route).observe(seconds)
        if answer.outcome:
            self._outcomes.labels(route, answer.outcome).inc()
        if answer.status_code == 499:
            self._cancelled.inc()
        log.info("%s %s %d %s %.3f s", name, route, answer.status_code, answer.outcome or "-", seconds)
        answer.headers["X-Request-Id"] = name
        return answer

    async def show_metrics(self, _: dict[str, Any]) -> Answer:
        """The page of ``GET /metrics``."""
        page = prometheus.generate_latest(self.registry)
        return Answer(page, headers={"Content-Type": prometheus.CONTENT_TYPE_PLAIN_0_0_4})

    async def show_health(self, _: Request) -> Answer:
        """``GET /v1/health``."""
        pool = self.pool
        status = "draining" if pool.draining else "ok" if pool.alive else "no_workers"
        body = {
            "service": "roll-sandbox",
            "api": VERSION,
            "status": status,
            "slots": self.settings.slots,
            "workers_alive": pool.alive,
            "running": pool.running,
            "waiting": pool.waiting,
            "sessions": len(self.sessions),
            "isolation": dump(pool.isolation),
        }
        return Answer(body, status=200 if status == "ok" else 503)

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
                raise ClientDisconnect
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
        with contextlib.suppress(ValueError):
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""


FUSION = {"/run_code": run_code, "/run_jupyter": run_jupyter, "/submit": submit}
"""SandboxFusion's routes; their status when the queue is full can be configured."""
OWN = {"/judge": judge, "/v1/run": run_native}
SESSION = "/v1/sessions/{name}"


def make_app(make: Callable[[], Sandbox], settings: Settings) -> Starlette:
    """The application; ``make`` makes a sandbox with one slot and is called once per worker.

    ``app.state.service`` is the :class:`Service`.
    """
    service = Service(make, settings)
    pool, sessions = service.pool, service.sessions

    def route(method: str, path: str, answer: Callable[..., Coroutine[Any, Any, Answer]]) -> Route:
        label = path.replace("{name}", "close") if path == SESSION else path.replace("/{name}", "")

        async def endpoint(request: Request) -> Answer:
            return await service.answer(request, label, partial(answer, **request.path_params))

        return Route(path, endpoint, methods=[method])

    async def ping(_: Request) -> Answer:
        return Answer("pong")

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        await pool.start()
        reaper = asyncio.create_task(sessions.reap())
        try:
            yield
        finally:
            reaper.cancel()
            await pool.close()

    routes = [
        *(route("POST", path, partial(answer, pool, settings)) for path, answer in {**FUSION, **OWN}.items()),
        route("POST", "/v1/sessions", sessions.open),
        route("POST", f"{SESSION}/run", sessions.run_cell),
        route("POST", f"{SESSION}/files", sessions.move_file),
        route("DELETE", SESSION, sessions.end),
        route("GET", "/metrics", service.show_metrics),
        Route("/v1/health", service.show_health, methods=["GET"]),
        Route("/v1/ping", ping, methods=["GET"]),
    ]
    app = Starlette(routes=routes, lifespan=life, exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def _no_route(request: Request, error: Exception) -> Answer:
    assert isinstance(error, HTTPException)
    known = ", ".join([*FUSION, *OWN, "/v1/sessions", "/v1/health", "/v1/ping", "/metrics"])
    message = f"{request.method} {request.url.path[:80]}: {error.detail}; there are {known}"
    return Refusal(error.status_code, "not_found", message, error.headers).answer()
