"""Carries out runs, and sessions, which run cells and copy files in and out until they are closed: the first process of
a PID namespace forks one process for each program, watches it, and ends all others.

Three processes do this: the zygote itself, where programs have a user of their own and a cgroup limits them (the fast
path: one fork for a run); an ``init`` with a PID namespace of its own that carries out one order and exits; and PID 1
of a container. They are trusted, and no program can reach them: the kernel drops signals that the first process of a
namespace has no handler for. They see limits and statuses, never sources, input, files or output.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from . import wire
from .files import open_plain, replace_file
from .kernel import kill_all
from .launch import Child, Jail, NotStartedError, Untrusted, fork_child
from .program import CODE_BYTES, TOKEN_BYTES, Script

REAP_MS = 20
"""How often orphans of a program are reaped while it runs."""
# Waiting processes lost one after the other before the slot gives up: then something outside kills each of them.
_MAX_LOST = 3
_CANNOT_EXECUTE = 126
"""Exit code of a shell that cannot run a command."""


class GoneError(Exception):
    """The caller or the supervisor is gone: no order is to follow."""


class Link(Protocol):
    """The connection to the caller."""

    sockets: tuple[socket.socket, ...]
    stopped: bool
    """Whether what runs has to end; reset by :meth:`receive`."""

    def receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        """The next order and its descriptors; ``None`` when the caller is gone."""

    def send(self, message: Mapping[str, Any], fds: list[int]) -> None:
        """Answer, and close ``fds``."""

    def wait(self, fds: list[int], timeout_ms: int | None) -> list[int]:
        """Those of ``fds`` that can be read; may set :attr:`stopped`."""


class SocketLink:
    """A link within this machine. ``alive``: of the zygote, a socket that hangs up when the supervisor ends."""

    def __init__(self, work: socket.socket, alive: int = -1) -> None:
        self.work, self.alive = work, alive
        self.sockets: tuple[socket.socket, ...] = (work,)
        self.stopped = False

    def receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        self.stopped = False
        return wire.receive(self.work)

    def send(self, message: Mapping[str, Any], fds: list[int]) -> None:
        wire.send(self.work, message, fds)

    def wait(self, fds: list[int], timeout_ms: int | None) -> list[int]:
        work = self.work.fileno()
        poll = select.poll()
        for fd in {*fds, work, self.alive} - {-1}:
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(timeout_ms)]
        if self.alive in ready:
            raise GoneError
        if work in ready and work not in fds:  # no order but "stop" comes while another is carried out
            message, _ = wire.receive(self.work)
            if message is None:
                raise GoneError
            self.stopped = True
        return ready


class Runs:
    """One run after the other; the process of the next run is set up before its order comes."""

    def __init__(self, script: Script, link: Link, jail: Jail) -> None:
        self._script, self.link, self.jail = script, link, jail
        self._ready: Child | None = None
        self._children: dict[int, Child] = {}
        self.begun = False
        """Whether a process has been given an order."""

    def make(self) -> Child:
        """The process that waits for an order; forked where there is none. Raises :class:`Untrusted` in it."""
        if self._ready is None:
            self._ready = fork_child(self._script, self.jail, self.link.sockets)
            self._children[self._ready.pid] = self._ready
        return self._ready

    def take(self) -> Child:
        """The process that waits for an order, for the caller to order and close."""
        child = self.make()
        self._ready = None
        self.begun = True
        return child

    def clear(self) -> None:
        """Kill all processes, also the one that waits for an order."""
        kill_all()
        self._children.clear()
        if self._ready is not None:
            self._ready.close()
            self._ready = None

    def wait(self, child: Child, *also: int) -> bool:
        """Wait until one of ``also`` can be read (only then true), ``child`` has ended, or a limit is reached.

        In the last case all processes are killed, and ``link.stopped`` is set.
        """
        while True:
            ready = self.link.wait([child.ended, *also], self.jail.tick_ms or REAP_MS)
            self._reap()
            over = not self.link.stopped and self.jail.over_limit(self._told_to_stop)
            if over or self.link.stopped:
                self.link.stopped = True
                kill_all()
                return False
            if child.status is not None:
                return False
            if set(also).intersection(ready):
                return True

    def _told_to_stop(self) -> bool:
        self.link.wait([], 0)
        return self.link.stopped

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    return
                child = self._children.pop(pid, None)
                if child is not None:
                    child.status, child.resident = status, usage.ru_maxrss << 10

    def run(self, message: dict[str, Any], fds: list[int]) -> bool:
        """Carry out an order to run a program, and report; whether its working folder went with the report."""
        if not self.jail.resize(message["limits"]):
            self.clear()
        child = self.take()
        self.jail.limit(message["limits"])
        started = time.monotonic()
        # Not all of the message: names of files to fetch may be longer than a packet.
        told = {name: message[name] for name in ("limits", "show_work")}
        child.order({**told, "order": "program", "others": self.jail.others}, fds)
        self.wait(child)
        wall_s = time.monotonic() - started
        # Background processes end with the run: before the report, so that files no longer change when it arrives.
        kill_all()
        self._children.clear()
        status = int(signal.SIGKILL) if child.status is None else child.status
        usage = self.jail.usage()
        if usage["peak"] is None or self.jail.tick_ms:
            usage["peak"] = max(usage["peak"] or 0, child.resident)  # a short run ends between two polls
        try:
            folder = child.check_started(excused=bool(usage["oom"]) or self.link.stopped)
        finally:
            child.close()
        self.link.send({"event": "done", "status": status, "wall_s": wall_s, **usage}, folder)
        return bool(folder)


def _report_fault(link: Link, error: BaseException, *, begun: bool) -> None:
    """Tell the caller why this process fails, and whether a program may have begun."""
    link.send({"event": "fault", "text": wire.describe(error), "begun": begun}, [])


@contextlib.contextmanager
def ending(link: Link, runs: Runs | None = None) -> Iterator[None]:
    """End this process after what is done here: with 0, or, after a fault, which the caller is told, with 71 (EX_OSERR
    of sysexits.h). :class:`Untrusted` passes."""
    code = 0
    try:
        yield
    except Untrusted:
        raise
    except GoneError:
        pass
    except BaseException as error:
        with contextlib.suppress(OSError):
            begun = runs is None or (runs.begun and not isinstance(error, NotStartedError))
            _report_fault(link, error, begun=begun)
        code = 71
    os._exit(code)


def serve_runs(runs: Runs, link: SocketLink) -> dict[str, Any] | None:
    """The zygote: carry out runs until another order comes, which is returned; ``None`` when the caller is gone."""
    lost = 0
    while True:
        child = runs.make()
        ready = link.wait([child.ended, link.work.fileno()], None)
        if child.ended in ready:  # killed while waiting, from outside the sandbox
            lost += 1
            said = child.channel.recv(4096, socket.MSG_DONTWAIT)
            runs.clear()
            if said or lost == _MAX_LOST:
                why = said.decode(errors="replace") or "it is killed"
                raise OSError(f"no process can be set up for a program: {why}")
        elif link.work.fileno() in ready:
            message, fds = link.receive()
            if message is None:
                return None
            if message["order"] == "stop":  # its run had ended
                continue
            if message["order"] != "run":
                runs.clear()
                return message
            try:
                runs.run(message, fds)
            except NotStartedError as error:
                _report_fault(link, error, begun=False)
            lost = 0


def serve_session(runs: Runs, opening: dict[str, Any]) -> None:
    """Answer orders one after the other. Raises :class:`Untrusted` in processes that it forks."""
    session = _Session(runs, opening)
    answers = {"cell": session.cell, "write": session.write, "read": session.read}
    runs.link.send({"event": "open"}, [])
    while True:
        message, fds = runs.link.receive()
        if message is None:
            return
        if message["order"] == "end":
            runs.clear()
            session.close()
            runs.link.send({"event": "ended"}, [])
            return
        if message["order"] != "stop":  # which comes when its cell has ended
            answers[message["order"]](message, fds)


class _Session:
    def __init__(self, runs: Runs, opening: dict[str, Any]) -> None:
        self._runs = runs
        self._command: list[str] | None = opening["command"]
        self._main: str = opening["main"]
        self._given = {"limits": opening["limits"], "environ": opening["environ"], "others": runs.jail.others}
        """For each process of the session."""
        self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._interpreter: Child | None = None
        """The process that holds the state of a Python session."""
        runs.jail.resize(opening["limits"])
        runs.jail.limit(opening["limits"])
        if self._command is None:
            self._begin()

    def _begin(self) -> Child:
        self._interpreter = self._runs.take()
        self._interpreter.order({"order": "cells", **self._given})
        self._interpreter.check_started()
        return self._interpreter

    def cell(self, message: dict[str, Any], fds: list[int]) -> None:
        runs = self._runs
        started = time.monotonic()
        try:
            runs.jail.limit(message["limits"])
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # More memory is held than this cell may: as if it had been asked for under this limit.
            self._drop()
            wire.close_all(fds)
            status, usage = None, {"oom": 1, "peak": None}
        else:
            status = self._python_cell(message, fds) if self._command is None else self._other_cell(fds)
            usage = runs.jail.usage()
            # After a kill nothing is known of the interpreter's state; the next cell begins another.
            if usage["oom"] or runs.link.stopped:
                self._drop()
        runs.link.send({"event": "cell", "status": status, "wall_s": time.monotonic() - started, **usage}, [])

    def _python_cell(self, message: dict[str, Any], fds: list[int]) -> int | None:
        """Its end as a wait status; ``None`` where a limit ended it."""
        try:
            interpreter = self._interpreter or self._begin()
        except NotStartedError:
            if not self._runs.jail.usage()["oom"]:
                raise
            self._drop()  # the files that the session holds leave no memory for another
            wire.close_all(fds)
            return None
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
        assert self._command is not None
        try:
            replace_file(self._folder, self._main, payload, self._runs.jail.user)
            child = self._runs.take()
        except OSError as error:  # what the session holds leaves no room for one more file or process
            self._drop()
            os.write(stderr, f"{self._main}: {error.strerror}\n".encode())
            wire.close_all(fds)
            return _CANNOT_EXECUTE << 8
        os.close(payload)
        nothing = os.open("/dev/null", os.O_RDWR)
        argv = [*self._command, self._main]
        child.order({"order": "command", "argv": argv, **self._given}, [nothing, stdout, stderr])
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

    def close(self) -> None:
        """Give up what is open, when all processes have been killed: PID 1 of a container lives on."""
        if self._interpreter is not None:
            self._interpreter.close()
        os.close(self._folder)

    def write(self, message: dict[str, Any], fds: list[int]) -> None:
        answer = {"event": "written"}
        try:
            replace_file(self._folder, message["path"], fds[0], self._runs.jail.user)
        except OSError as error:
            answer = {"event": "refused", "text": error.strerror or str(error)}
        os.close(fds[0])
        self._runs.link.send(answer, [])

    def read(self, message: dict[str, Any], fds: list[int]) -> None:
        fd = open_plain(self._folder, message["path"])
        if fd is None:
            self._runs.link.send({"event": "refused", "text": "no plain file below the working folder"}, [])
        else:
            self._runs.link.send({"event": "file", "size": os.fstat(fd).st_size}, [fd])
