"""A small MCP server for tests: ``python mcp_small_server.py`` speaks over stdio, with a port over streamable HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("small")
counted = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Add two
    whole numbers."""
    return a + b


@server.tool()
def count() -> str:
    """How often this was called."""
    global counted
    counted += 1
    return f"count {counted}"


@server.tool()
def variable(name: str) -> str:
    """A variable of its environment."""
    return os.environ[name]


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("not today")


@server.tool()
def slow(seconds: float) -> str:
    """Takes its time."""
    time.sleep(seconds)
    return "done"


@server.tool()
def stall() -> None:
    """Stops the whole server, as one does whose loop is stuck."""
    os.kill(os.getpid(), signal.SIGSTOP)


@server.tool()
def nothing() -> None:
    """Returns nothing."""


@server.tool()
def die(flag: str) -> str:
    """Ends the server, unless the file ``flag`` exists; makes that file where it can."""
    if os.path.exists(flag):
        return "survived"
    with contextlib.suppress(OSError), open(flag, "w", encoding="utf-8"):
        pass
    print("the server gives up", file=sys.stderr, flush=True)
    os._exit(3)


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")
