"""The process that will run untrusted code: it drops its privileges first, then waits for its order and carries it out.

This way the slow part is done before there is a program. The order comes from the first process of the PID namespace:
run the program of a payload, serve the cells of a session, or execute another program.
"""

from __future__ import annotations

import abc
import contextlib
import math
import os
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from . import kernel, wire
from .files import write_new
from .program import Script, draw_anew, execute, serve_cells

CHANNEL = 100
"""Descriptor number of the channel. It is above every number in use: objects of the frames that :class:`Untrusted`
unwinds close their own descriptors when they are freed, and must not close this one.
"""
STARTED = b"started"
"""Sent when the trusted set-up is done; whatever happens after it is the program's doing."""

# An exit code of sysexits.h that says nothing by itself: the reason is sent through the channel.
_NOT_STARTED = 72


class Untrusted(BaseException):
    """Raised in a freshly forked child to unwind to the top of its stack, where :attr:`start` is called.

    Afterwards no frame of the trusted code, with its local variables, is left below the frames of the program.
    """

    def __init__(self, start: Callable[[], NoReturn]) -> None:
        super().__init__()
        self.start = start


class NotStartedError(OSError):
    """An infrastructure failure before anything of the program was run."""


class Jail(abc.ABC):
    """A place for programs: on this machine (``jail``), or the container that the Docker backend made
    (``sandboxes.docker.pid1``). What runs in it, and how it is started, watched and ended, is the same.

    Used by the first process of the PID namespace, except where noted.
    """

    user: int
    """Owner of a program's files."""

    others: int
    """Processes and threads that count as the program's user's and are not the program's."""

    tick_ms: int | None = None
    """How long one may wait before :meth:`over_limit` is asked again; ``None`` where the kernel sees to limits."""

    def before_fork(self) -> None:  # noqa: B027 - most places have nothing to do
        """No process of the next program is there yet."""

    @abc.abstractmethod
    def enter(self, keep: int) -> None:
        """In the process that becomes the program, first: its own part of the set-up; close all descriptors from 3 on
        but that of the channel, which becomes ``keep``."""

    @abc.abstractmethod
    def give_up_rights(self) -> None:
        """In the process that becomes the program, last: from here on it is untrusted."""

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        return dict(environ)

    def resize(self, limits: Mapping[str, Any]) -> bool:
        """Adopt the size of files; false where the process that waits already cannot get it, so that it is replaced."""
        return True

    @abc.abstractmethod
    def limit(self, limits: Mapping[str, Any]) -> None:
        """Set the limits of all processes together; usage is counted from now on.

        Raises ``OSError`` EBUSY where more memory is held than that.
        """

    def over_limit(self, stopped: Callable[[], bool]) -> bool:
        """Look once, as long as not ``stopped``: among hundreds of busy processes a look takes seconds."""
        return False

    @abc.abstractmethod
    def usage(self) -> dict[str, Any]:
        """``oom``: processes ended for want of memory, ``peak``: most bytes held, or ``None``; since :meth:`limit`."""


@dataclass(kw_only=True, slots=True)
class Child:
    """A process that will run untrusted code, and the trusted end of the channel to it."""

    pid: int
    channel: socket.socket
    ended: int
    """A pidfd, readable when it has ended."""
    status: int | None = None
    """Its wait status, once it has been reaped."""
    resident: int = 0
    """Its peak memory in bytes, once it has been reaped."""

    def order(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send the order, and close ``fds``. A child that has died is noticed by :meth:`check_started`, not here."""
        with contextlib.suppress(OSError):
            wire.send(self.channel, message, fds)

    def check_started(self, *, excused: bool = False) -> list[int]:
        """Wait for :data:`STARTED`; returns the descriptors sent with it (the working folder, where that was asked
        for).

        Raises :class:`NotStartedError` when it ended before the program began, unless ``excused``.
        """
        try:
            said, fds, _, _ = socket.recv_fds(self.channel, 4096, 1)
        except ConnectionResetError:  # it ended before it read the order; its error message is read by the next call
            said, fds, _, _ = socket.recv_fds(self.channel, 4096, 1)
        if said != STARTED and not excused:
            how = "it ended" if self.status is None else f"it ended with wait status {self.status}"
            raise NotStartedError(f"the program could not be started: {said.decode(errors='replace') or how}")
        return fds

    def close(self) -> None:
        os.close(self.ended)
        self.channel.close()


def fork_child(script: Script, jail: Jail, others: Sequence[socket.socket]) -> Child:
    """Fork a process that sets itself up and waits for its order.

    ``others``: sockets of the caller, which the child gives up. Raises :class:`Untrusted` in the child.
    """
    jail.before_fork()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(pid=pid, channel=ours, ended=os.pidfd_open(pid))
    os.dup2(theirs.fileno(), CHANNEL, inheritable=False)
    for channel in (ours, theirs, *others):
        channel.detach()  # enter() closes the numbers; objects freed later must not close what reuses them
    raise Untrusted(lambda: _become(script, jail))


def _become(script: Script, jail: Jail) -> NoReturn:
    """Enter the jail, drop all privileges, wait for the order, carry it out."""
    channel = socket.socket(fileno=CHANNEL)
    try:
        jail.enter(CHANNEL)
        jail.give_up_rights()
        message, fds = wire.receive(channel)
        if message is None:
            os._exit(0)
        start = _ORDERS[message["order"]](message, fds, script, jail)
        bound_resources(message)
        folder = [os.open(".", os.O_RDONLY | os.O_DIRECTORY)] if message.get("show_work") else []
        socket.send_fds(channel, [STARTED], folder)
        wire.close_all(folder)
        if message["order"] != "cells":
            channel.close()  # before untrusted code runs, which could write to it
    except BaseException as error:
        channel.send(wire.describe(error).encode()[:4096])
        os._exit(_NOT_STARTED)
    start()
    os._exit(0)


def _take_streams(fds: Sequence[int]) -> None:
    # 0, 1 and 2 are open here, so no descriptor that was received has one of these numbers.
    for place, fd in enumerate(fds):
        os.dup2(fd, place)
        os.close(fd)


_STACK = 64 << 20
"""Stack of a program's first thread: recursion goes as deep as public judges let it."""


def bound_resources(message: Mapping[str, Any]) -> None:
    """Set the limits of each process: those of an order.

    Its ``others`` are processes and threads that the same user has beside those of the run.
    """
    limits = message["limits"]
    bounds = {
        resource.RLIMIT_NPROC: limits["processes"] + message["others"],
        resource.RLIMIT_FSIZE: limits["files_mb"] << 20,
        resource.RLIMIT_NOFILE: kernel.ZYGOTE_NAMESPACE_FD,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 1 << 16,
        resource.RLIMIT_MSGQUEUE: 1 << 16,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: 1024,
    }
    if message["order"] == "program":  # a session lives long
        # The limit is per process; a run with several threads may use more processor time than wall time.
        bounds[resource.RLIMIT_CPU] = math.ceil(limits["wall_s"]) * limits["processes"] + 2
    for name, bound in bounds.items():
        _, hard = resource.getrlimit(name)
        value = bound if hard < 0 else min(bound, hard)  # raising a hard limit needs a capability
        resource.setrlimit(name, (value, value))
    # Only the soft limit: programs may raise it.
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard < 0 else min(hard, _STACK), hard))


def _program(message: Mapping[str, Any], fds: list[int], script: Script, jail: Jail) -> Callable[[], object]:
    head, blobs = wire.unpack(fds[0])
    source = next(blobs)
    write_new(head["main"], source)
    for name, content in zip(head["files"], blobs, strict=True):
        write_new(name, content, executable=name in head["executables"])
    os.close(fds[0])
    _take_streams(fds[1:])
    environ = jail.environ(head["environ"])
    os.environ.update(environ)
    if head["argv"]:
        return lambda: execute(head["argv"], environ)
    draw_anew()
    return lambda: script.run(head["main"], source, head["arguments"])


def _cells(message: Mapping[str, Any], fds: list[int], script: Script, jail: Jail) -> Callable[[], object]:
    nothing = os.open("/dev/null", os.O_RDWR)
    _take_streams([os.dup(nothing), os.dup(nothing), nothing])
    os.environ.update(jail.environ(message["environ"]))
    draw_anew()
    return lambda: serve_cells(CHANNEL, script)


def _command(message: Mapping[str, Any], fds: list[int], script: Script, jail: Jail) -> Callable[[], object]:
    _take_streams(fds)
    environ = jail.environ(message["environ"])
    return lambda: execute(message["argv"], environ)


_ORDERS = {"program": _program, "cells": _cells, "command": _command}
