"""The server process: uvicorn, with timeouts for slow connections and a graceful stop, which it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from roll_envs.errors import ConfigError
from sandboxes.service.app import Service
from sandboxes.service.settings import Settings

log = logging.getLogger("roll_sandbox.server")

DRAIN_STEP_S = 0.05


def bind(settings: Settings) -> socket.socket:
    """A socket bound to the address, not listening yet. Raises :class:`ConfigError` when it cannot be bound."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with contextlib.ExitStack() as undone:
            made = undone.enter_context(socket.socket(family, kind, protocol))
            # A restart must not wait for old connections in TIME_WAIT.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            undone.pop_all()
            return made
    except OSError as error:
        raise ConfigError(
            f"{settings.host} port {settings.port} cannot be listened on: {error.strerror or error}; "
            "choose another with --host and --port (0 takes a free one)"
        ) from error


def make_server(app: Starlette, settings: Settings) -> ReportingServer:
    """A server for an application of :func:`sandboxes.service.app.make_app`."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=_protocol(settings),
        ws="none",
        loop="asyncio",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=max(1, int(settings.keep_alive_s)),
        # Requests have been finished or ended by then, see ReportingServer.
        timeout_graceful_shutdown=5,
        limit_concurrency=settings.max_connections,
        backlog=min(4096, settings.max_connections),
    )
    return ReportingServer(config, app.state.service)


class ReportingServer(uvicorn.Server):
    """Prints where it listens; the first SIGTERM or SIGINT drains the service, the second stops it at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self._stopping: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; then print the address to standard output."""
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets=sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            tier = self.service.pool.isolation.tier
            print(f"roll-sandbox listens on http://{host}:{port} (isolation: {tier})", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in a signal handler, so it only schedules the stop on the loop."""
        if self.loop is None or not self.started:
            self.should_exit = True
            return
        self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._drain())
        else:
            log.warning("second signal: what still runs is ended")
            self._stopping.cancel()
            self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        """Refuse new requests, and wait at most ``drain_timeout_s`` for the others."""
        log.info("draining: %d requests to finish; a second signal ends them", self.service.active)
        self.service.pool.drain()
        deadline = time.monotonic() + self.service.settings.drain_timeout_s
        while self.service.active and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_STEP_S)
        if self.service.active:
            log.warning("%d requests did not finish in time and are ended", self.service.active)
            await self.service.pool.close()
        self.should_exit = True


def _protocol(settings: Settings) -> type[H11Protocol]:
    class Protocol(H11Protocol):
        """Closes a connection that does not finish its request's head, or does not read its answer, in time.

        uvicorn closes idle connections only after their first answer; the body has a time limit of its own.
        """

        def _allow(self, what: str, seconds: float) -> None:
            """Close the connection after that time, unless :meth:`_came` is called before."""
            if what not in self._timers:
                self._timers[what] = self.loop.call_later(seconds, self.transport.abort)

        def _came(self, what: str) -> None:
            if what in self._timers:
                self._timers.pop(what).cancel()

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._timers: dict[str, asyncio.TimerHandle] = {}
            self._allow("head", settings.header_timeout_s)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._allow("head", settings.header_timeout_s)
            else:
                self._came("head")

        def pause_writing(self) -> None:
            super().pause_writing()
            self._allow("reading", settings.write_timeout_s)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._came("reading")

        def connection_lost(self, exc: Exception | None) -> None:
            self._came("head")
            self._came("reading")
            super().connection_lost(exc)

    return Protocol
