"""A session: runs cells and copies files in and out, until it is closed. Its processes are those of one ``Runs``."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from typing import Any

from .files import open_plain, replace_file
from .launch import Child
from .process_tree import kill_all
from .program import CODE_BYTES, TOKEN_BYTES
from .runs import Runs


def serve_session(runs: Runs, opening: dict[str, Any]) -> None:
    """Answer orders one after the other. Raises :class:`Untrusted` in processes that it forks."""
    session = _Session(runs, opening)
    runs.link.send({"event": "open"}, [])
    while True:
        message, fds = runs.link.receive()
        if message is None or message["order"] == "end":
            return
        session.answer(message, fds)


class _Session:
    def __init__(self, runs: Runs, opening: dict[str, Any]) -> None:
        self._runs = runs
        self._command: list[str] | None = opening["command"]
        self._environ: dict[str, str] = opening["environ"]
        self._limits: dict[str, Any] = opening["limits"]
        self._main: str = opening["main"]
        self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._interpreter: Child | None = None
        """The process that holds the state of a Python session."""
        runs.jail.resize(self._limits)
        runs.jail.limit(self._limits)
        if self._command is None:
            self._begin()

    def answer(self, message: dict[str, Any], fds: list[int]) -> None:
        {"cell": self._cell, "write": self._write, "read": self._read}[message["order"]](message, fds)

    def _order(self, child: Child, order: str, fds: list[int], **more: Any) -> None:
        others = self._runs.jail.others()
        child.order({"order": order, "limits": self._limits, "environ": self._environ, "others": others, **more}, fds)

    def _begin(self) -> Child:
        self._interpreter = self._runs.take()
        self._order(self._interpreter, "cells", [])
        self._interpreter.check_started()
        return self._interpreter

    def _cell(self, message: dict[str, Any], fds: list[int]) -> None:
        runs = self._runs
        started = time.monotonic()
        try:
            runs.jail.limit(message["limits"])
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # More memory is held than this cell may: as if it had been asked for under this limit.
            self._drop()
            for fd in fds:
                os.close(fd)
            runs.link.send({"event": "cell", "status": None, "wall_s": 0.0, "oom": 1, "peak": None}, [])
            return
        status = self._python_cell(message, fds) if self._command is None else self._other_cell(fds)
        usage = runs.jail.usage()
        # After a kill nothing is known of the interpreter's state; the next cell begins another.
        if usage["oom"] or runs.link.stopped:
            self._drop()
        runs.link.send({"event": "cell", "status": status, "wall_s": time.monotonic() - started, **usage}, [])

    def _python_cell(self, message: dict[str, Any], fds: list[int]) -> int | None:
        """Its end as a wait status; ``None`` where a limit ended it."""
        interpreter = self._interpreter or self._begin()
        token = os.urandom(TOKEN_BYTES)
        interpreter.order({"number": message["serial"], "token": token.hex()}, fds)
        if self._runs.wait(interpreter, interpreter.channel.fileno()):
            with contextlib.suppress(OSError):
                said = interpreter.channel.recv(256, socket.MSG_DONTWAIT)
                if len(said) == TOKEN_BYTES + CODE_BYTES and said.startswith(token):
                    return (int.from_bytes(said[TOKEN_BYTES:], "little") & 0xFF) << 8
            ended, _, _ = select.select([interpreter.ended], [], [], 0.1)
            if not ended:  # it closed its channel or answered without the token: the program controls the interpreter
                self._drop()
                return 1 << 8
            self._runs.wait(interpreter)
        self._drop()
        return interpreter.status

    def _other_cell(self, fds: list[int]) -> int | None:
        payload, stdout, stderr = fds
        replace_file(self._folder, self._main, payload, self._runs.jail.user)
        os.close(payload)
        assert self._command is not None
        child = self._runs.take()
        nothing = os.open("/dev/null", os.O_RDWR)
        self._order(child, "command", [nothing, stdout, stderr], argv=[*self._command, self._main])
        try:
            self._runs.wait(child)
            if child.status is not None:
                child.check_started()
            return child.status
        finally:
            child.close()

    def _drop(self) -> None:
        """Kill all processes of the session; the state of the interpreter is lost."""
        kill_all()
        if self._interpreter is not None:
            self._interpreter.close()
            self._interpreter = None

    def _write(self, message: dict[str, Any], fds: list[int]) -> None:
        answer = {"event": "written"}
        try:
            replace_file(self._folder, message["path"], fds[0], self._runs.jail.user)
        except OSError as error:
            answer = {"event": "refused", "text": error.strerror or str(error)}
        os.close(fds[0])
        self._runs.link.send(answer, [])

    def _read(self, message: dict[str, Any], fds: list[int]) -> None:
        fd = open_plain(self._folder, message["path"])
        if fd is None:
            self._runs.link.send({"event": "refused", "text": "no plain file below the working folder"}, [])
        else:
            self._runs.link.send({"event": "file", "size": os.fstat(fd).st_size}, [fd])
