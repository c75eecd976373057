"""The process that will run untrusted code: it drops its privileges first, then waits for its order and carries it out.

This way the slow part is done before there is a program. The order comes from init: run the program of a payload, serve
the cells of a session, or execute another program.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from . import wire
from .cells import serve_cells
from .confine import RUN_USER, bound_resources, give_up_rights
from .files import write_new
from .program import Script, execute, set_environment
from .workspace import Workspace

__all__ = ["CHANNEL", "STARTED", "Untrusted", "become", "keep_only_channel"]

CHANNEL = 100
"""Descriptor number of the channel. It is above every number in use: objects of the frames that :class:`Untrusted`
unwinds close their own descriptors when they are freed, and must not close this one.
"""
STARTED = b"started"
"""Sent when the trusted set-up is done; whatever happens after it is the program's doing."""

# An exit code of sysexits.h that says nothing by itself: the reason is sent through the channel.
_NOT_STARTED = 72
WithFolders = Callable[[Mapping[str, str]], dict[str, str]]
"""Replaces ``HOME`` and ``TMPDIR`` of an environment by the folders of the slot."""


class Untrusted(BaseException):
    """Raised in a freshly forked child to unwind to the top of its stack, where :attr:`start` is called.

    Afterwards no frame of the trusted code, with its local variables, is left below the frames of the program.
    """

    def __init__(self, start: Callable[[], NoReturn]) -> None:
        super().__init__()
        self.start = start


def keep_only_channel(channel: socket.socket, workspace: Workspace | None = None) -> None:
    """Close all descriptors from 3 on but the channel, which becomes :data:`CHANNEL`, and the ruleset."""
    os.dup2(channel.detach(), CHANNEL, inheritable=False)
    after = CHANNEL + 1
    if workspace is not None:
        workspace.move_ruleset(after)
        after += 1
    os.closerange(3, CHANNEL)
    os.closerange(after, 1 << 20)  # close_range(2) up to any number is one system call


def become(script: Script, workspace: Workspace | None, *, many_users: bool) -> NoReturn:
    """Drop all privileges, wait for the order, carry it out."""
    channel = socket.socket(fileno=CHANNEL)
    try:
        give_up_rights(RUN_USER if workspace is None else workspace.user, many_users=many_users)
        if workspace is not None:
            workspace.enter()
        message, fds = wire.receive(channel)
        if message is None:
            os._exit(0)
        start = _ORDERS[message["order"]](message, fds, script, dict if workspace is None else workspace.with_folders)
        socket.send_fds(channel, [STARTED], _work_folder(message))
        if message["order"] != "cells":
            channel.close()  # before untrusted code runs, which could write to it
    except BaseException as error:
        channel.send(wire.describe(error).encode()[:4096])
        os._exit(_NOT_STARTED)
    start()
    os._exit(0)


def _work_folder(message: Mapping[str, Any]) -> list[int]:
    """The open working folder, where the order asks for it: its files are fetched from outside this mount namespace."""
    return [os.open(".", os.O_RDONLY | os.O_DIRECTORY)] if message.get("show_work") else []


def _take_streams(fds: Sequence[int]) -> None:
    # 0, 1 and 2 are open here, so no descriptor that was received has one of these numbers.
    for place, fd in enumerate(fds):
        os.dup2(fd, place)
        os.close(fd)


def _program(message: Mapping[str, Any], fds: list[int], script: Script, folders: WithFolders) -> Callable[[], object]:
    head, blobs = wire.unpack(fds[0])
    source = next(blobs)
    write_new(head["main"], source)
    for name, content in zip(head["files"], blobs, strict=True):
        write_new(name, content, executable=name in head["executables"])
    os.close(fds[0])
    _take_streams(fds[1:])
    bound_resources(message["limits"], cpu_s=message["limits"]["wall_s"], others=message["others"])
    environ = folders(head["environ"])
    set_environment(environ)
    if head["argv"]:
        return lambda: execute(head["argv"], environ)
    return lambda: script.run(head["main"], source, head["arguments"])


def _cells(message: Mapping[str, Any], fds: list[int], script: Script, folders: WithFolders) -> Callable[[], object]:
    nothing = os.open("/dev/null", os.O_RDWR)
    _take_streams([os.dup(nothing), os.dup(nothing), nothing])
    bound_resources(message["limits"], cpu_s=None, others=message["others"])
    set_environment(folders(message["environ"]))
    return lambda: serve_cells(CHANNEL, script)


def _command(message: Mapping[str, Any], fds: list[int], script: Script, folders: WithFolders) -> Callable[[], object]:
    _take_streams(fds)
    bound_resources(message["limits"], cpu_s=None, others=message["others"])
    environ = folders(message["environ"])
    return lambda: execute(message["argv"], environ)


_ORDERS = {"program": _program, "cells": _cells, "command": _command}
