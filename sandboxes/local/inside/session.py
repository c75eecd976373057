"""Init of a session: runs cells and copies files in and out, until the channel is closed."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from typing import Any

from . import wire
from .cells import CODE_BYTES, TOKEN_BYTES
from .files import open_plain, replace_file
from .init import Child, Init
from .launch import Untrusted
from .process_tree import kill_all

__all__ = ["serve_session"]


TICK_MS = 200
"""How often orphans of a program are reaped."""


class _Interpreter:
    """The process that holds the state of a Python session."""

    def __init__(self, child: Child) -> None:
        self.channel = child.channel
        self.ended = os.pidfd_open(child.pid)

    def close(self) -> None:
        os.close(self.ended)
        self.channel.close()


def serve_session(init: Init, opening: dict[str, Any]) -> None:
    """Answer orders one after the other. Raises :class:`Untrusted` in processes that it forks."""
    session = _Session(init, opening)
    wire.send(init.work, {"event": "open"})
    while True:
        message, fds = wire.receive(init.work)
        if message is None:
            return
        try:
            session.answer(message, fds)
        except Untrusted:
            raise
        finally:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)


class _Session:
    def __init__(self, init: Init, opening: dict[str, Any]) -> None:
        self._init = init
        self._command: list[str] | None = opening["command"]
        self._environ: dict[str, str] = opening["environ"]
        self._limits: dict[str, Any] = opening["limits"]
        self._main: str = opening["main"]
        self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._nothing = os.open("/dev/null", os.O_RDWR)
        self._interpreter: _Interpreter | None = None
        init.limit(self._limits)
        if self._command is None:
            self._begin()

    def answer(self, message: dict[str, Any], fds: list[int]) -> None:
        order = message["order"]
        if order == "cell":
            self._cell(message, fds)
        elif order == "write":
            self._write(message, fds)
        elif order == "read":
            self._read(message)
        # "stop" arrived after its cell had ended: nothing to do

    def _begin(self) -> None:
        child = self._init.take_ready()
        order = {"order": "cells", "limits": self._limits, "environ": self._environ, "others": self._init.others()}
        child.order(order)
        child.check_started()
        self._interpreter = _Interpreter(child)

    def _cell(self, message: dict[str, Any], fds: list[int]) -> None:
        payload, stdout, stderr = fds
        self._init.limit(message["limits"])
        started = time.monotonic()
        if self._command is None:
            code, signal, stopped = self._python_cell(message, fds)
        else:
            code, signal, stopped = self._other_cell(payload, stdout, stderr)
        for fd in fds:
            os.close(fd)
        # So that serve_session does not close these numbers again, which may have been given to other files.
        fds.clear()
        usage = self._init.usage()
        # After a kill nothing is known of the interpreter's state; the next cell begins another.
        if (usage["oom"] or stopped) and self._command is None:
            self._drop()
        elif usage["oom"] or stopped:
            kill_all()
        report = {"event": "cell", "serial": message["serial"], "code": code, "signal": signal, "stopped": stopped}
        wire.send(self._init.work, {**report, **usage, "wall_s": time.monotonic() - started})

    def _python_cell(self, message: dict[str, Any], fds: list[int]) -> tuple[int | None, int | None, bool]:
        if self._interpreter is None:
            self._begin()
        interpreter = self._interpreter
        assert interpreter is not None
        token = os.urandom(TOKEN_BYTES)
        with contextlib.suppress(OSError):  # it may be dying; its end will be seen below
            wire.send(interpreter.channel, {"number": message["serial"], "token": token.hex()}, fds)
        poll = select.poll()
        poll.register(interpreter.channel, select.POLLIN)
        status = self._wait(poll, interpreter.ended)
        # _wait returns the status of the process as an int, all else as a bool.
        if isinstance(status, bool):
            if status:
                return None, None, True
            with contextlib.suppress(OSError):
                said = interpreter.channel.recv(256, socket.MSG_DONTWAIT)
                if len(said) == TOKEN_BYTES + CODE_BYTES and said.startswith(token):
                    return int.from_bytes(said[TOKEN_BYTES:], "little") & 0xFF, None, False
            ended, _, _ = select.select([interpreter.ended], [], [], 0.1)
            if not ended:  # it closed its channel or answered without the token: the program controls the interpreter
                self._drop()
                return 1, None, False
            status = _reap(interpreter.ended)
        self._drop()
        return *_ending(status), False

    def _other_cell(self, payload: int, stdout: int, stderr: int) -> tuple[int | None, int | None, bool]:
        _, blobs = wire.unpack(payload)
        replace_file(self._folder, self._main, next(blobs), self._init.user)
        command, environ = self._command, self._environ
        assert command is not None
        child = self._init.take_ready()
        order = {"order": "command", "limits": self._limits, "environ": environ, "argv": [*command, self._main]}
        child.order({**order, "others": self._init.others()}, (self._nothing, stdout, stderr))
        ended = os.pidfd_open(child.pid)
        try:
            status = self._wait(select.poll(), ended)
            if isinstance(status, bool):
                return None, None, True
            child.check_started(status)
            return *_ending(status), False
        finally:
            os.close(ended)
            child.channel.close()

    def _wait(self, poll: select.poll, ended: int) -> int | bool:
        """Wait for the process to end (returns its status), an event of ``poll`` (``False``) or a stop (``True``)."""
        poll.register(ended, select.POLLIN)
        poll.register(self._init.work, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll(self._init.tick_ms or TICK_MS)]
            if self._init.work.fileno() in ready:
                # While a cell runs the only order that comes is "stop".
                message, _ = wire.receive(self._init.work)
                if message is None:
                    os._exit(0)
                kill_all()
                return True
            if self._init.over_limit():
                kill_all()
                return True
            if ended in ready:
                return _reap(ended)
            if ready:
                return False
            _reap_orphans(ended)

    def _drop(self) -> None:
        """Kill all processes of the session; the state of the interpreter is lost."""
        kill_all()
        if self._interpreter is not None:
            self._interpreter.close()
            self._interpreter = None

    def _write(self, message: dict[str, Any], fds: list[int]) -> None:
        content = os.pread(fds[0], os.fstat(fds[0]).st_size, 0)
        try:
            replace_file(self._folder, message["path"], content, self._init.user)
        except OSError as error:
            wire.send(self._init.work, {"event": "refused", "text": error.strerror or str(error)})
        else:
            wire.send(self._init.work, {"event": "written"})

    def _read(self, message: dict[str, Any]) -> None:
        fd = open_plain(self._folder, message["path"])
        if fd is None:
            wire.send(self._init.work, {"event": "refused", "text": "no plain file below the working folder"})
            return
        wire.send(self._init.work, {"event": "file", "name": message["path"]}, (fd,))
        os.close(fd)


def _reap(ended: int) -> int:
    info = os.waitid(os.P_PIDFD, ended, os.WEXITED)
    assert info is not None
    return info.si_status << 8 if info.si_code == os.CLD_EXITED else info.si_status


def _reap_orphans(keep: int) -> None:
    """Reap children that have ended, except the process of the pidfd ``keep``, whose status the caller needs."""
    while not select.select([keep], [], [], 0)[0]:
        # WNOWAIT looks without reaping: were it the process to keep, its status would be lost.
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None or select.select([keep], [], [], 0)[0]:
            return
        os.waitpid(info.si_pid, 0)


def _ending(status: int) -> tuple[int | None, int | None]:
    return (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), None)
