"""The server process: uvicorn, with timeouts for slow connections and a graceful stop, which it lacks."""

from __future__ import annotations

import asyncio
import logging
import socket
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from roll_envs.errors import ConfigError
from sandboxes.service.service import Service
from sandboxes.service.settings import Settings

log = logging.getLogger("roll_sandbox.server")


def bind(settings: Settings) -> socket.socket:
    """A socket bound to the address, not listening yet. Raises :class:`ConfigError` when it cannot be bound."""
    made: socket.socket | None = None
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        # A restart must not wait for old connections in TIME_WAIT.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        if made is not None:
            made.close()
        raise ConfigError(
            f"{settings.host} port {settings.port} cannot be listened on: {error.strerror or error}; "
            "choose another with --host and --port (0 takes a free one)"
        ) from error
    return made


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
            tier = self.service.pool.isolation
            shown = tier.tier if tier is not None else "unknown"
            print(f"roll-sandbox listens on http://{host}:{port} (isolation: {shown})", flush=True)

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
        log.info("draining: %d requests to finish; a second signal ends them", self.service.active)
        finished = await self.service.drain()
        if not finished:
            log.warning("%d requests did not finish in time and are ended", self.service.active)
            await self.service.close()
        self.should_exit = True


def _protocol(settings: Settings) -> type[H11Protocol]:
    class Protocol(H11Protocol):
        """Closes a connection that does not finish its request's head, or does not read its answer, in time.

        uvicorn closes idle connections only after their first answer; the body has a time limit of its own.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._head_timer: asyncio.TimerHandle | None = None
            self._write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._wait_for_head()
            else:
                self._head_came()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._write_timer is None:
                self._write_timer = self.loop.call_later(settings.write_timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_came()
            if self._write_timer is not None:
                self._write_timer.cancel()
            super().connection_lost(exc)

        def _wait_for_head(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(settings.header_timeout_s, self.transport.abort)

        def _head_came(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return Protocol
