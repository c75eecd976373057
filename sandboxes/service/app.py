"""The web application: its routes and the functions that answer them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roll_envs.sandbox import Sandbox
from sandboxes.service import native
from sandboxes.service.fusion import run_code, run_jupyter
from sandboxes.service.judge import judge
from sandboxes.service.messages import Answer, Refusal, encode_json
from sandboxes.service.service import Service
from sandboxes.service.settings import Settings
from sandboxes.service.submit import submit
from sandboxes.service.wire import VERSION, dump

FUSION = {"/run_code": run_code, "/run_jupyter": run_jupyter, "/submit": submit}
"""SandboxFusion's routes; their status when the queue is full can be configured."""
OWN = {"/judge": judge, "/v1/run": native.run_native}
SESSION = "/v1/sessions/{name}"


def make_app(make: Callable[[], Sandbox], settings: Settings) -> Starlette:
    """The application; ``make`` makes a sandbox with one slot and is called once per worker.

    ``app.state.service`` is the :class:`Service`.
    """
    service = Service(make, settings)
    pool, sessions = service.pool, service.sessions

    def route(method: str, path: str, answer: Callable[..., Coroutine[Any, Any, Answer]], **options: Any) -> Route:
        label = path.replace("{name}", "close") if path == SESSION else path.replace("/{name}", "")

        async def endpoint(request: Request) -> Response:
            return await service.answer(request, label, partial(answer, **request.path_params), **options)

        return Route(path, endpoint, methods=[method])

    async def metrics(_: dict[str, Any]) -> Answer:
        return Answer(body={}, text=service.metrics.render())

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
        *(
            route("POST", path, partial(answer, pool, settings), full_status=settings.full_status)
            for path, answer in FUSION.items()
        ),
        *(route("POST", path, partial(answer, pool, settings)) for path, answer in OWN.items()),
        route("POST", "/v1/sessions", partial(native.open_session, sessions, settings)),
        route("POST", f"{SESSION}/run", partial(native.run_cell, sessions, settings)),
        route("POST", f"{SESSION}/files", partial(native.move_file, sessions, settings)),
        route("DELETE", SESSION, partial(native.close_session, sessions), body=False),
        route("GET", "/metrics", metrics, body=False),
        Route("/v1/health", health, methods=["GET"]),
        Route("/v1/ping", ping, methods=["GET"]),
    ]
    app = Starlette(routes=routes, lifespan=life, exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _health(service: Service) -> dict[str, Any]:
    pool = service.pool
    status = "draining" if pool.draining else "ok" if pool.alive else "no_workers"
    return {
        "service": "roll-sandbox",
        "api": VERSION,
        "status": status,
        "slots": pool.slots,
        "workers_alive": pool.alive,
        "running": pool.running,
        "waiting": pool.waiting,
        "sessions": len(service.sessions),
        "isolation": dump(pool.isolation),
    }


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ", ".join([*FUSION, *OWN, "/v1/sessions", "/v1/health", "/v1/ping", "/metrics"])
    message = f"{request.method} {request.url.path[:80]}: {error.detail}; there are {known}"
    answer = Refusal(error.status_code, "not_found", message).answer()
    return Response(encode_json(answer.body), error.status_code, error.headers, "application/json")
