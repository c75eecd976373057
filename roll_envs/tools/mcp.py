"""The tool ``mcp``: every tool of a Model Context Protocol server, over stdio or streamable HTTP.

    tools: [{tool: mcp, command: [python, my_server.py]}]
    tools: [{tool: mcp, url: "http://localhost:8000/mcp", only: [lookup], stateless: true}]

Each episode that calls the server gets a session of its own (for a command: a process of its own), unless the server is
said to be ``stateless``; then one connection serves all episodes. The official client library is asynchronous and wants
its contexts left by the task that entered them, so one task on the loop of each connection opens it, waits, and closes
it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import json
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll_envs.background import EventLoopThread
from roll_envs.errors import ConfigError, EnvironmentFaultError, MissingExtraError, UnknownNameError
from roll_envs.tools.types import Tool, ToolResult, ToolSpec

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
        plain: dict[str, Any] = result.model_dump(by_alias=True, mode="json")
        return plain

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
            cursor = plain.get("nextCursor")
            if not cursor:
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


class McpServer:
    """A server that several tools share, with one restart when it dies.

    It is restarted and the call repeated where no state is lost by that: the server is stateless, or it was the
    first call of the episode. Else the failure is raised, since the state of the episode is lost; the next episode
    gets a new server.
    """

    def __init__(self, endpoint: McpEndpoint, *, stateless: bool, start_s: float) -> None:
        self.endpoint, self.stateless, self.start_s = endpoint, stateless, start_s
        self._connection: McpConnection | None = McpConnection(endpoint, start_s=start_s)
        self.listed = self._connection.tools
        self._calls = 0

    def begin(self) -> None:
        """An episode begins."""
        # Each tool of the server begins the episode; only the first of them finds calls of the last one.
        if self._calls and not self.stateless:
            self.drop()
        self._calls = 0

    def drop(self) -> None:
        """End the connection; the next call opens another."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def call(self, name: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any]:
        """Raises :class:`McpRefusalError`, and :class:`EnvironmentFaultError` when the server is gone for good."""
        # Counted before the call: one that fails may have changed the server's state as well.
        earlier, self._calls = self._calls, self._calls + 1
        left_s = deadline_s
        for again in (False, True):
            started = time.monotonic()
            try:
                return self._opened().call(name, arguments, deadline_s=left_s)
            except ServerGoneError as error:
                left_s -= time.monotonic() - started
                self.drop()
                if left_s <= 0:  # it stalled, and would again
                    raise
                if again:
                    raise EnvironmentFaultError(f"{error} (again, after one restart)") from error
                if earlier and not self.stateless:
                    said = f"{error} (after {earlier} calls of this episode, whose state is lost)"
                    raise EnvironmentFaultError(said) from error
        raise AssertionError("unreachable")

    def _opened(self) -> McpConnection:
        if self._connection is None:
            self._connection = McpConnection(self.endpoint, start_s=self.start_s)
        return self._connection


class McpTool(Tool):
    """One tool of a server."""

    def __init__(self, server: McpServer, listed: Mapping[str, Any], prefix: str) -> None:
        self._server, self._name = server, str(listed["name"])
        self.state = "none" if server.stateless else "outside"
        self.grace_s = server.start_s + 10.0  # for a restart
        self.spec = ToolSpec(
            name=prefix + self._name,
            description=" ".join(str(listed.get("description") or self._name).split()),
            parameters=dict(listed.get("inputSchema") or {"type": "object", "properties": {}}),
        )

    def open(self) -> None:
        self._server.begin()

    def call(self, arguments: Mapping[str, Any], *, deadline_s: float) -> ToolResult:
        try:
            result = self._server.call(self._name, arguments, deadline_s=deadline_s)
        except McpRefusalError as refusal:
            return ToolResult(text=f"Error: {refusal}", ok=False)
        return ToolResult(text=_text(result), ok=not result.get("isError", False))

    def dispose(self) -> None:
        self._server.drop()


def make_mcp_tools(
    *,
    command: Sequence[str] = (),
    url: str = "",
    env: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
    prefix: str = "",
    stateless: bool = False,
    start_s: float = 20.0,
) -> tuple[McpTool, ...]:
    """The tools of the server that ``command`` starts or that answers at ``url``; ``only`` some, named ``prefix`` and
    their own name. Raises :class:`ConfigError`, :class:`~roll_envs.errors.MissingExtraError`, and
    :class:`ServerGoneError` when the server is not ready within ``start_s`` seconds."""
    if bool(command) == bool(url):
        raise ConfigError("tool 'mcp' needs either command (a list: program and arguments) or url")
    endpoint = McpEndpoint(command=tuple(command), env=dict(env or {}), url=url)
    server = McpServer(endpoint, stateless=stateless, start_s=start_s)
    try:
        names = [str(listed["name"]) for listed in server.listed]
        for name in only or ():
            if name not in names:
                raise UnknownNameError(f"tool of the MCP server {endpoint}", name, names)
        return tuple(
            McpTool(server, listed, prefix) for listed in server.listed if only is None or listed["name"] in only
        )
    except BaseException:
        with contextlib.suppress(Exception):  # report the first error
            server.drop()
        raise


def _text(result: Mapping[str, Any]) -> str:
    parts = [_block(block) for block in result.get("content") or []]
    text = "\n".join(part for part in parts if part.strip())
    if not text and result.get("structuredContent") is not None:
        text = json.dumps(result["structuredContent"], ensure_ascii=False)
    return text or "(the tool returned nothing)"


def _block(block: Mapping[str, Any]) -> str:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    resource = block.get("resource")
    if isinstance(resource, Mapping) and "text" in resource:
        return str(resource["text"])
    return f"[{block.get('type', 'content')}: {block.get('mimeType') or block.get('uri') or 'no text'}]"
