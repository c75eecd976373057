"""The tool ``mcp``: every tool of a Model Context Protocol server, over stdio or streamable HTTP.

    tools: [{tool: mcp, command: [python, my_server.py]}]
    tools: [{tool: mcp, url: "http://localhost:8000/mcp", only: [lookup], stateless: true}]

Each episode that calls the server gets a session of its own (for a command: a process of its own), unless the server is
said to be ``stateless``; then one connection serves all episodes.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from roll_envs.errors import ConfigError, EnvironmentFaultError, UnknownNameError
from roll_envs.tools.mcp_connection import McpConnection, McpEndpoint, McpRefusalError, ServerGoneError
from roll_envs.tools.types import Tool, ToolResult, ToolSpec


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
                self._connection = self._connection or McpConnection(self.endpoint, start_s=self.start_s)
                return self._connection.call(name, arguments, deadline_s=left_s)
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
