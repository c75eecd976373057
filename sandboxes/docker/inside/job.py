"""A process forked from PID 1: reads its request, sets itself up, and becomes the program.

A request's body is four bytes of length, a JSON head, then the contents of ``head["files"]`` (path, size) and of stdin.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from sandboxes.docker.inside.files import FOLDER, read_out, write_in
from sandboxes.docker.inside.interpreter import read_cell, serve_cells
from sandboxes.docker.inside.watch import READY
from sandboxes.local.inside import kernel, program

__all__ = ["enter", "enter_session", "prepare", "work"]

_NICENESS = 10
"""Lower priority than PID 1, which must be scheduled however many processes a program starts."""

_script: program.Script
_task: Callable[[], None]


def prepare() -> None:
    """Make the state that all programs start from, once in PID 1; afterwards the environment is empty."""
    global _script
    _script = program.Script()


def enter(body: int, note: int) -> None:
    """Read the request and prepare; ``work`` does the rest, after all stack frames of PID 1 have returned."""
    global _task
    try:
        head, contents = _read(body)
        _task = KINDS[head["kind"]](head, contents)
        if head["kind"] == "program":
            _become_untrusted(keep=(note,))
            os.write(note, READY + f"{time.monotonic()}\n".encode())
            os.close(note)
    except BaseException as error:  # reported as an infrastructure failure, not as an error of the program
        os.write(note, f"{type(error).__name__}: {error}".encode())
        os._exit(71)


def enter_session(body: int, note: int) -> None:
    """Prepare to be the interpreter of a session."""
    global _task
    try:
        head, source = read_cell(body)
        os.chdir(FOLDER)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        _become_untrusted(keep=(body, note))
        _task = lambda: serve_cells(_script, body, note, head, source)  # noqa: E731 - the process has this one task
    except BaseException as error:
        os.write(note, f"{type(error).__name__}: {error}".encode())
        os._exit(71)


def work() -> None:
    """Carry out the prepared task; ends the process."""
    _task()


def _read(body: int) -> tuple[dict[str, Any], Iterator[bytes]]:
    with open(body, "rb") as file:
        (length,) = struct.unpack("!I", file.read(4))
        head: dict[str, Any] = json.loads(file.read(length))
        sizes = [size for _, size in head.get("files", [])] + [head.get("stdin", 0)]
        contents = [file.read(size) for size in sizes]
    if [len(content) for content in contents] != sizes:
        raise EOFError("the request was cut off")
    return head, iter(contents)


# -- kinds of jobs -----------------------------------------------------------------------------------------------------


def _program(head: dict[str, Any], contents: Iterator[bytes]) -> Callable[[], None]:
    os.chdir(FOLDER)
    source = b""
    for path, _ in head["files"]:
        content = next(contents)
        write_in(path, content)
        if path == head["main"]:
            source = content
    stdin = os.memfd_create("stdin")
    view = memoryview(next(contents))
    while view:
        view = view[os.write(stdin, view) :]
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    program.set_environment(head["environ"])
    if head["argv"]:
        return lambda: program.execute(head["argv"], head["environ"])
    return lambda: _script.run(head["main"], source, head["arguments"])


def _put(head: dict[str, Any], contents: Iterator[bytes]) -> Callable[[], None]:
    for path, _ in head["files"]:
        write_in(path, next(contents))
    return lambda: os._exit(0)


def _get(head: dict[str, Any], contents: Iterator[bytes]) -> Callable[[], None]:
    for piece in read_out(head["paths"], head["max_bytes"]):
        view = memoryview(piece)
        while view:
            view = view[os.write(1, view) :]
    return lambda: os._exit(0)


KINDS = {"program": _program, "put": _put, "get": _get}


def _become_untrusted(keep: tuple[int, ...]) -> None:
    """Close all descriptors except 0, 1, 2 and ``keep``, and undo the settings that protect PID 1."""
    last = 2
    for fd in sorted(keep):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    os.setsid()
    os.nice(_NICENESS)
    kernel.dumpable(True)
    # The kernel's first choice when memory runs out must be a program, not PID 1.
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    # Programs must not import the trusted code.
    for name in [n for n in sys.modules if n == "sandboxes" or n.startswith("sandboxes.")]:
        del sys.modules[name]
