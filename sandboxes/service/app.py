"""The web application: its routes and the functions that answer them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from roll_envs.sandbox import Sandbox
from sandboxes.service import native
from sandboxes.service.judge import judge
from sandboxes.service.jupyter import run_jupyter
from sandboxes.service.replies import Answer, Refusal, encode_json
from sandboxes.service.run_code import run_code
from sandboxes.service.service import Handler, Service
from sandboxes.service.settings import Settings
from sandboxes.service.submit import submit
from sandboxes.service.wire import VERSION

FUSION = {"/run_code": run_code, "/run_jupyter": run_jupyter, "/submit": submit}
"""SandboxFusion's routes; their status when the queue is full can be configured."""
OWN = {"/judge": judge, "/v1/run": native.run_native}


def make_app(make: Callable[[], Sandbox], settings: Settings) -> Starlette:
    """The application; ``make`` makes a sandbox with one slot and is called once per worker.

    ``app.state.service`` is the :class:`Service`.
    """
    service = Service(make, settings)
    pool, sessions = service.pool, service.sessions

    def post(path: str, answer: Handler, full_status: int = 429) -> Route:
        async def endpoint(request: Request) -> Response:
            return await service.answer(request, path, answer, full_status=full_status)

        return Route(path, endpoint, methods=["POST"])

    def session_route(suffix: str, method: str, label: str, answer: Any, *, body: bool = True) -> Route:
        async def endpoint(request: Request) -> Response:
            name = request.path_params["name"]
            return await service.answer(request, label, lambda data: answer(name, data), body=body)

        return Route("/v1/sessions/{name}" + suffix, endpoint, methods=[method])

    async def metrics(request: Request) -> Response:
        async def page(_: dict[str, Any]) -> Answer:
            return Answer(body={})

        checked = await service.answer(request, "/metrics", page, body=False)
        if checked.status_code != 200:
            return checked
        text = service.metrics.render(pool, sessions=len(sessions), draining=service.draining)
        return PlainTextResponse(text, media_type=PROMETHEUS)

    async def health(_: Request) -> Response:
        body = _health(service)
        return Response(encode_json(body), 200 if body["status"] == "ok" else 503, media_type="application/json")

    async def ping(_: Request) -> Response:
        return Response(b'"pong"', media_type="application/json")

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    routes = [
        *(post(path, partial(answer, pool, settings), settings.full_status) for path, answer in FUSION.items()),
        *(post(path, partial(answer, pool, settings)) for path, answer in OWN.items()),
        post("/v1/sessions", partial(native.open_session, sessions, settings)),
        session_route("/run", "POST", "/v1/sessions/run", partial(native.run_cell, sessions, settings)),
        session_route("/files", "POST", "/v1/sessions/files", partial(native.move_file, sessions, settings)),
        session_route(
            "", "DELETE", "/v1/sessions/close", lambda name, _: native.close_session(sessions, name), body=False
        ),
        Route("/v1/health", health, methods=["GET"]),
        Route("/v1/ping", ping, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
    app = Starlette(routes=routes, lifespan=life, exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False
    app.state.service = service
    return app


PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def _health(service: Service) -> dict[str, Any]:
    pool = service.pool
    status = "draining" if service.draining else "ok" if pool.alive else "no_workers"
    body: dict[str, Any] = {
        "service": "roll-sandbox",
        "api": VERSION,
        "status": status,
        "slots": pool.slots,
        "workers_alive": pool.alive,
        "running": pool.running,
        "waiting": pool.waiting,
        "sessions": len(service.sessions),
        "isolation": None,
    }
    if pool.isolation is not None:
        known = pool.isolation
        body["isolation"] = {"tier": known.tier, "layers": list(known.layers), "missing": list(known.missing)}
    return body


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ", ".join([*FUSION, *OWN, "/v1/sessions", "/v1/health", "/v1/ping", "/metrics"])
    message = f"{request.method} {request.url.path[:80]}: {error.detail}; there are {known}"
    answer = Refusal(error.status_code, "not_found", message).answer()
    return Response(encode_json(answer.body), error.status_code, error.headers, "application/json")
