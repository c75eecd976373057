"""One open connection to a Model Context Protocol server, for callers that are not asynchronous.

The official client library is asynchronous and wants its contexts left by the task that entered them, so one task on
the loop of each connection opens it, waits, and closes it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll_envs.background import EventLoopThread
from roll_envs.errors import EnvironmentFaultError, MissingExtraError

PING_S = 3.0
_STDERR_SHOWN = 600


class ServerGoneError(EnvironmentFaultError):
    """The server ended, or answers nothing any more."""


class McpRefusalError(Exception):
    """The server works and refused a request, or did not finish it in time; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class McpEndpoint:
    """Where a server is: a command that speaks over stdin and stdout, or a URL of streamable HTTP."""

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables added to a small fixed environment, for a command."""
    url: str = ""

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


class McpConnection:
    """Open from its making until :meth:`close`. Raises :class:`ServerGoneError` when the server cannot be reached."""

    def __init__(self, endpoint: McpEndpoint, *, start_s: float) -> None:
        try:
            # Not imported by statements: it is an optional part.
            self._mcp = importlib.import_module("mcp")
            self._http = importlib.import_module("mcp.client.streamable_http")
        except ImportError as error:
            raise MissingExtraError("the tool 'mcp'", "mcp") from error
        self._endpoint = endpoint
        self._background = EventLoopThread(f"mcp {endpoint}")
        # Held while work is submitted: a loop that has been stopped would begin again with it.
        self._submitting, self._closed = threading.Lock(), False
        self._session: Any = None
        # Opened for appending: the server writes at the end while this process reads elsewhere in the file.
        self._stderr = tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed in close
        ready: concurrent.futures.Future[list[dict[str, Any]]] = concurrent.futures.Future()
        self._life = self._background.submit(self._live(ready))
        try:
            self.tools = ready.result(start_s)
            """What the server offers, each as ``{"name": ..., "description": ..., "inputSchema": {...}}``."""
        except Exception as error:  # the library raises many types when a server cannot be reached
            late = isinstance(error, TimeoutError) and not ready.done()
            why = f"was not ready after {start_s:g} s" if late else f"cannot be reached: {_why(error)}"
            said = self._said()
            self.close()
            raise ServerGoneError(f"the MCP server {endpoint} {why}{said}") from error

    def call(self, name: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any]:
        """The result of a tool call, as the protocol's ``CallToolResult`` in plain data.

        Raises :class:`McpRefusalError` when the server works but refuses or is too slow, else
        :class:`ServerGoneError`.
        """
        try:
            result = self._run(lambda: self._session.call_tool(name, dict(arguments)), deadline_s)
        except TimeoutError:
            self._need_ping(f"it did not answer {name!r} within {deadline_s:g} s")
            raise McpRefusalError(f"the tool did not answer within {deadline_s:g} s") from None
        except Exception as error:  # errors of the protocol, and those of a broken connection, differ by release
            self._need_ping(_why(error))
            raise McpRefusalError(_why(error)) from error
        return dict(result.model_dump(by_alias=True, mode="json"))

    def close(self) -> None:
        """End the connection, and the server where it is a command; any number of times."""
        with self._submitting:
            self._closed = True
        self._background.stop()
        self._stderr.close()

    def _need_ping(self, problem: str) -> None:
        try:
            self._run(lambda: self._session.send_ping(), PING_S)
        # A server that answers a ping has refused the request; one that does not is gone.
        except Exception as error:  # any failure of a ping means the same
            raise self._gone(f": {problem}") from error

    def _gone(self, why: str = "") -> ServerGoneError:
        return ServerGoneError(f"the MCP server {self._endpoint} is gone{why}{self._said()}")

    def _run(self, work: Callable[[], Awaitable[Any]], timeout_s: float) -> Any:
        with self._submitting:
            if self._closed or self._life.done():
                raise self._gone()
            future = self._background.submit(asyncio.wait_for(work(), timeout_s))
        try:
            # The time limit within the loop ends first, unless the loop itself is stuck.
            return future.result(timeout_s + PING_S)
        except concurrent.futures.CancelledError as error:
            raise self._gone() from error
        finally:
            future.cancel()  # one that is done stays so

    async def _live(self, ready: concurrent.futures.Future[list[dict[str, Any]]]) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                streams = await stack.enter_async_context(self._transport())
                session = self._mcp.ClientSession(streams[0], streams[1])
                self._session = await stack.enter_async_context(session)
                await self._session.initialize()
                ready.set_result(await self._listed())
                await asyncio.Event().wait()  # until close() cancels this task
        except BaseException as error:  # raised in the constructor, or noticed by the next call as a dead connection
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else ServerGoneError(repr(error)))
            raise

    def _transport(self) -> Any:
        if self._endpoint.url:
            # The name differs between releases of the library.
            opened = getattr(self._http, "streamable_http_client", None) or self._http.streamablehttp_client
            return opened(self._endpoint.url)
        command, *arguments = self._endpoint.command
        server = self._mcp.StdioServerParameters(command=command, args=arguments, env=dict(self._endpoint.env))
        return self._mcp.stdio_client(server, errlog=self._stderr)

    async def _listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(100):  # pages; a server that goes on for ever is not followed
            following = self._mcp.types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await self._session.list_tools(params=following)
            plain = page.model_dump(by_alias=True, mode="json")
            found += plain["tools"]
            if not (cursor := plain.get("nextCursor")):
                break
        return found

    def _said(self) -> str:
        """The end of what the server wrote to stderr."""
        try:
            self._stderr.seek(0)
            text = " ".join(self._stderr.read().split())
        except ValueError:  # closed
            return ""
        return f"; its stderr ends: {text[-_STDERR_SHOWN:]}" if text else ""


def _why(error: BaseException) -> str:
    """The innermost reason; asynchronous libraries wrap errors in groups."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return str(error) or type(error).__name__
