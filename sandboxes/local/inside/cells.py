"""The untrusted process of a Python session: cells in one namespace, as in a notebook."""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import socket
import sys
from typing import Any, NoReturn

from . import wire
from .program import Script, exit_code, show, standard_streams

CODE_BYTES = 4
TOKEN_BYTES = 8
"""An answer begins with the random token of its order, so that a program cannot send an answer in advance."""


def serve_cells(channel_fd: int, script: Script) -> NoReturn:
    """Run cells until the channel is closed.

    The answer to a cell is its exit code; nothing else from here is trusted.
    """
    sys.argv = [""]
    sys.path.insert(0, os.getcwd())
    channel = socket.socket(fileno=channel_fd)
    # Local names: a cell may replace functions of os and of wire.
    receive, send, own = wire.receive, channel.send, os.getpid()
    getpid, leave, dup2, close, pread, fstat = os.getpid, os._exit, os.dup2, os.close, os.pread, os.fstat
    nothing = os.open("/dev/null", os.O_RDWR)
    namespace = vars(script.module)
    while True:
        message, fds = receive(channel)
        if message is None or getpid() != own:
            leave(0)
        payload, stdout, stderr = fds
        source = pread(payload, fstat(payload).st_size, 0)
        close(payload)
        dup2(stdout, 1)
        dup2(stderr, 2)
        close(stdout)
        close(stderr)
        standard_streams()
        code = run_cell(source.decode("utf-8", "surrogatepass"), f"<cell {message['number']}>", namespace)
        if getpid() != own:  # os.fork() in a cell: the child returns here too
            leave(code)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        # Gives up the cell's pipes, so that they reach their end; threads that go on print to nowhere.
        dup2(nothing, 1)
        dup2(nothing, 2)
        send(bytes.fromhex(message["token"]) + code.to_bytes(CODE_BYTES, "little"))


def run_cell(source: str, name: str, namespace: dict[str, Any]) -> int:
    """Statements, then the value of a last expression through ``sys.displayhook``; 1 after an exception."""
    # So that tracebacks show lines of cells; an entry without a time (None) is not looked for on disk.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        # dont_inherit: without this module's own `from __future__` imports.
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace))
    except SystemExit as error:
        return exit_code(error) & 0xFF
    except BaseException as error:
        show(error, with_cells=True)
        return 1
    return 0
