"""The process that holds the state of a Python session and runs its cells one after the other in one namespace."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from typing import Any, NoReturn

from sandboxes.docker.inside.files import FOLDER
from sandboxes.local.inside.cells import run_cell
from sandboxes.local.inside.program import Script, set_environment, standard_streams

__all__ = ["read_cell", "serve_cells"]


def read_cell(body: int) -> tuple[dict[str, Any], str]:
    """The next cell: its head, and its source."""
    (length,) = struct.unpack("!I", _read(body, 4))
    head: dict[str, Any] = json.loads(_read(body, length))
    return head, _read(body, head["source"]).decode("utf-8", "surrogatepass")


def serve_cells(script: Script, body: int, note: int, head: dict[str, Any], source: str) -> NoReturn:
    """Run cells until PID 1 is gone.

    Each ends with the line ``name code`` in ``note``; nothing else from here is trusted.
    """
    # Local names: a cell may replace functions of os.
    leave, own, getpid, write = os._exit, os.getpid(), os.getpid, os.write
    set_environment(head["environ"])
    sys.argv = [""]
    sys.path.insert(0, FOLDER)
    namespace = vars(script.module)
    while True:
        standard_streams()
        code = run_cell(source, f"<cell {head['number']}>", namespace)
        if getpid() != own:  # os.fork() in a cell: the child returns here too
            leave(code)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        try:
            write(note, f"{head['name']} {code}\n".encode())
            head, source = read_cell(body)
        except OSError:  # the cell has closed descriptors of the interpreter
            leave(code or 1)


def _read(fd: int, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = os.read(fd, count - len(content))
        if not piece:
            os._exit(0)
        content += piece
    return bytes(content)
